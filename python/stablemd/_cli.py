# SPDX-License-Identifier: BSD-3-Clause
"""The command line: export, info, check, cache. A user's mistake is one line ``Error: ...`` and exit code 2."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from . import __version__
from ._errors import ArgumentError, StableMDError, in_python
from ._text import escaped

_SYMBOLS = re.compile(r"^[A-Z][a-z]?(,[A-Z][a-z]?)*$")


class _OneLineErrors(click.Group):
    """Prints every error that a user can cause as one line, without usage or traceback."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **kwargs)
        try:
            status = super().main(*args, standalone_mode=False, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(2)
        except click.ClickException as error:
            _fail(error.format_message())
        except StableMDError as error:
            _fail(error.worded(_as_option))
        except click.Abort:
            _fail("interrupted", 130)
        except MemoryError:
            _fail("out of memory")
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # before click, which prints an empty line
            raise click.Abort from None


def _fail(message: str, code: int = 2) -> None:
    click.echo(f"Error: {escaped(' '.join(message.split()))}", err=True)
    sys.exit(code)


#: arguments of functions whose options have another name
_OTHER_NAMES = {"features": "feature"}


def _as_option(name: str, value: str) -> str:
    """An argument of a function as who types a command knows it."""
    option = "--" + _OTHER_NAMES.get(name.rstrip("="), name.rstrip("="))
    if not any(option in parameter.opts for command in cli.commands.values() for parameter in command.params):
        return f"{in_python(name, value)} from Python (stablemd.export_potential)"
    return f"{option} {_as_typed(value)}".rstrip()


def _as_typed(value: str) -> str:
    try:
        value = ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return value
    if isinstance(value, dict):
        return " ".join(f"{name}={'VALUE' if one is ... else one}" for name, one in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class _ListOption(click.Command):
    """Lets ``--elements Si C`` mean ``--elements Si,C``: takes what follows as long as it looks like a symbol."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        joined: list[str] = []
        collecting = False
        for argument in args:
            if collecting and joined[-1] != "--elements" and _SYMBOLS.match(argument):
                joined[-1] += f",{argument}"
                continue
            collecting = argument == "--elements" or (collecting and joined[-1] == "--elements")
            joined.append(argument)
        return super().parse_args(ctx, joined)


class _Progress:
    """Says what goes on, with the time since the start: in place on a terminal, line by line elsewhere."""

    def __init__(self, quiet: bool):
        self.quiet, self.start = quiet, time.monotonic()
        self.terminal = sys.stderr.isatty()

    def __call__(self, step: str) -> None:
        if self.quiet:
            return
        line = f"{time.monotonic() - self.start:6.1f} s  {escaped(step)}"
        click.echo(f"\r\x1b[K{line}" if self.terminal else line, nl=not self.terminal, err=True)

    def close(self) -> None:
        if self.terminal and not self.quiet:
            click.echo("\r\x1b[K", nl=False, err=True)


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name for name in re.split(r"[\s,]+", text) if name]
    if not names:
        raise ArgumentError("--elements is empty; list chemical symbols such as --elements Si C")
    return names


def _feature_values(words: tuple[str, ...]) -> dict[str, float]:
    values = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            values[name.strip()] = float(text)
        except ValueError:
            raise ArgumentError(f"--feature {word} is not NAME=VALUE, such as charge=-1") from None
    return values


@click.group(cls=_OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stablemd")
def cli() -> None:
    """Run trained JAX interatomic potentials natively in molecular-dynamics engines."""
    logging.getLogger("torch.utils.cpp_extension").addFilter(_is_of_interest)


def _is_of_interest(record: logging.LogRecord) -> bool:
    """torch warns wherever a CUDA toolkit is installed and no GPU is there; nothing here needs one."""
    return "No CUDA runtime is found" not in str(record.msg)


@cli.command(cls=_ListOption)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE.safetensors",
    help="The bundle to write.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    default="float32",
    show_default=True,
    help="Precision of the program. Energies, forces and virials are summed in double in any case.",
)
@click.option(
    "--elements",
    metavar="El ...",
    help="Keep only these elements, e.g. --elements Si C: the bundle is smaller, and knows no others.",
)
@click.option("--head", metavar="NAME", help="Which head of a multi-head model to export.")
@click.option(
    "--feature",
    "features",
    multiple=True,
    metavar="NAME=VALUE",
    help="Default of what the model takes of the whole structure, e.g. --feature charge=-1 --feature spin=2; a"
    " simulation may set other values.",
)
@click.option(
    "--kernels",
    type=click.Choice(["xla", "oeq"]),
    default="xla",
    show_default=True,
    help="Leave convolutions to XLA, or call OpenEquivariance's ops, compiled where the bundle runs.",
)
@click.option("--gpu", metavar="NAME", help="With --kernels oeq: the GPU that CUDA kernels are for, e.g. h200.")
@click.option(
    "--platforms", default="cpu,cuda", show_default=True, metavar="P,...", help="Platforms to write programs for."
)
@click.option("--name", metavar="TEXT", help="Name in the bundle; by default the model's own.")
@click.option(
    "--no-original",
    is_flag=True,
    help="Do not compare a .model file with mace-torch itself, which takes a while for large models.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress, only the summary.")
def export(
    model: Path,
    output: Path,
    dtype: str,
    head: str | None,
    elements: str | None,
    features: tuple[str, ...],
    kernels: str,
    gpu: str | None,
    platforms: str,
    name: str | None,
    no_original: bool,
    quiet: bool,
) -> None:
    """Write a trained model as a bundle, for LAMMPS and ASE.

    MODEL is a MACE-JAX model (a folder with config.json and params.msgpack, a pair of .json and .msgpack, or a .ckpt)
    or a mace-torch .model file. A .model file is a Python pickle: reading one runs code that is stored in it,
    so export only files that you trust.

    The model is loaded, traced at a few sizes, fitted to a program for any size, and verified: a .model file against
    mace-torch, the program natively against JAX. The bundle appears when all of this has succeeded.

    \b
    stablemd export mace.model -o mace.safetensors --elements Si O
    """
    _check_files(model, output)
    values = _feature_values(features)
    choices = {"head": head, "elements": _names(elements), "features": values, "kernels": kernels, "gpu": gpu}
    progress = _Progress(quiet)
    try:
        progress(f"load {model}")
        from ._export import checked_path, export_potential
        from ._originals import has_original, open_original
        from .mace import load

        checked_path(output)
        potential = load(model, **choices)
        options = {"name": name} if name is not None else {}
        if has_original(model) and not no_original:
            progress("load the model in mace-torch, to compare")
            options["original"] = open_original(model, potential.source.get("head"), potential.inputs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "an atom's energy jumps|.*: an atom's energy jumps")  # in the summary
            summary = export_potential(
                potential,
                output,
                dtype=dtype,
                platforms=[p for p in re.split(r"[\s,]+", platforms) if p],
                progress=progress,
                **options,
            )
    finally:
        progress.close()
    _print_summary(summary)


def _check_files(model: Path, output: Path) -> None:
    if not os.path.exists(model):
        raise ArgumentError(f"there is no model {model}; give a MACE-JAX model or a mace-torch .model file")
    if os.path.exists(output) and output.resolve() == model.resolve():
        raise ArgumentError(f"the output {output} is the model itself; choose another name")


def _print_summary(summary: Any) -> None:
    from ._inputs import describe

    rows = {
        "bundle": f"{summary.path} ({_size(summary.file_size)})",
        "elements": _element_list(summary.elements),
        "cutoff": f"{summary.cutoff:g}, {summary.layers} layer{'s' if summary.layers > 1 else ''}",
        "parameters": f"{summary.parameters:,} in {summary.dtype}",
        "platforms": " ".join(summary.platforms),
    }
    if summary.inputs:
        rows["inputs"] = describe(summary.inputs)
    if summary.outputs:
        rows["outputs"] = " ".join(summary.outputs)
    if summary.targets:
        rows["FFI targets"] = " ".join(summary.targets)
    if summary.original:
        rows["original"] = _against_text(summary.original)
    if summary.energy_deviation is None:
        rows["verified"] = f"no: {summary.unverified}"
    else:
        rows["verified"] = (
            f"largest difference from JAX {summary.energy_deviation:.1e} in energy per atom,"
            f" {summary.force_deviation:.1e} in force"
        )
    if summary.cutoff_jump:
        from ._export import jump_text

        rows["warning"] = jump_text(summary.cutoff_jump)
    _print_rows(rows)


def _against_text(against: dict[str, Any]) -> str:
    return (
        f"{against['framework']}: largest difference {against['energy']:.1e} in energy per atom,"
        f" {against['force']:.1e} in force"
    )


def _element_list(elements: Any) -> str:
    return " ".join(elements) + (f" ({len(elements)})" if len(elements) > 10 else "")


def _print_rows(rows: dict[str, str]) -> None:
    width = max(len(escaped(label)) for label in rows)
    for label, value in rows.items():
        click.echo(f"{escaped(label):<{width}}  {escaped(value)}")


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the manifest and the list of tensors as JSON.")
def info(file: Path, as_json: bool) -> None:
    """Say what a bundle holds."""
    from ._bundle import read_bundle
    from ._inputs import describe, stored_inputs

    bundle = read_bundle(file)
    manifest = bundle.manifest
    if as_json:
        tensors = {name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in bundle.tensors.items()}
        text = json.dumps({"manifest": manifest, "tensors": tensors}, indent=2, sort_keys=True)
        click.echo(text.replace("\x7f", "\\u007f"))  # the only control character that JSON leaves as it is
        return
    units = manifest["units"]
    energies = zip(manifest["elements"], manifest["atomic_energies"], strict=True)
    source = dict(manifest.get("source") or {})
    against, gpu = source.pop("verified against", None), source.pop("gpu", None)
    outputs = {name: one["unit"] for name, one in manifest.get("node_outputs", {}).items()}
    rows = {
        "bundle": f"{file} ({_size(file.stat().st_size)}), format {manifest['format']}",
        "name": manifest.get("name") or "-",
        "elements": _element_list(manifest["elements"]),
        "atomic energies": ", ".join(f"{element} {energy:.6g}" for element, energy in energies) + f" {units['energy']}",
        "cutoff": f"{manifest['cutoff']:g} {units['length']}",
        "layers": str(manifest["layers"]),
        "parameters": f"{bundle.parameter_count:,} in {manifest['dtype']}",
        "inputs": describe(stored_inputs(manifest)) or "none",
        "outputs": ", ".join(f"{name} ({unit})" if unit else name for name, unit in outputs.items()) or "none",
        "platforms": " ".join(sorted(manifest["programs"])),
        "FFI targets": " ".join(sorted({t for p in manifest["programs"].values() for t in p["targets"]})) or "none",
        **({"GPU": str(gpu)} if gpu else {}),
        "made with": ", ".join(f"{k} {v}" for k, v in sorted((manifest.get("versions") or {}).items())) or "-",
        "source": ", ".join(f"{k}: {v}" for k, v in sorted(source.items())) or "-",
        "original": _against_text(against) if isinstance(against, dict) else "not compared",
    }
    if manifest.get("reference"):
        atoms = bundle.tensors["reference/numbers"][1][0]
        rows["reference"] = f"{atoms} atoms, energy {manifest['reference']['energy']:.8f} {units['energy']}"
    else:
        rows["reference"] = "none"
    _print_rows(rows)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="MODEL",
    help="Compare with this model as well: a mace-torch .model file, or a bundle.",
)
@click.option(
    "--structures",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --against: structures to compare on, in any format of ASE's; by default variations of the stored one.",
)
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="PNG", help="With --against: force parity.")
@click.option("--head", metavar="NAME", help="With --against: head of the original; by default the exported one.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--plugin", type=click.Path(), metavar="PATH", help="PJRT plugin to use.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads; 0: all cores.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def check(
    file: Path,
    against: Path | None,
    structures: Path | None,
    picture: Path | None,
    head: str | None,
    quiet: bool,
    **runtime: Any,
) -> None:
    """Recompute a bundle's stored reference here and compare; with --against also with the original model.

    The original is a mace-torch .model file (a pickle: opening it runs code from it), evaluated by mace-torch in
    float64, or another bundle. Exit code 1 if anything differs by more than two correct evaluations may.

    \b
    stablemd check mace.safetensors --against mace.model --plot parity.png
    """
    from ._bundle import read_bundle

    for option, value in (("--structures", structures), ("--plot", picture), ("--head", head)):
        if value is not None and against is None:
            raise ArgumentError(f"{option} needs --against MODEL")
    if against is not None and not os.path.exists(against):
        raise ArgumentError(f"there is no file {against} to compare with")
    bundle = read_bundle(file)
    progress = _Progress(quiet)
    try:
        comparison = None if against is None else _open_comparison(bundle, against, structures, picture, head, progress)
        passed = _check_reference(bundle, runtime, progress)
        if comparison is not None:
            passed = _check_against(bundle, comparison, runtime, progress) and passed
    finally:
        progress.close()
    if not passed:
        click.get_current_context().exit(1)


_RESULTS = {True: "agrees", False: "DIFFERS: do not use this bundle here"}


def _check_reference(bundle: Any, runtime: dict[str, Any], progress: _Progress) -> bool:
    from ._native import compare_with_reference, load
    from ._reference import stored_reference, tolerances

    reference = stored_reference(bundle)
    model = load(bundle.path, **runtime)
    deviation = compare_with_reference(model, reference)
    energy_bar, force_bar = tolerances(model.dtype, deviation.largest_energy, deviation.largest_force)
    energy_unit, length_unit = (bundle.manifest["units"][quantity] for quantity in ("energy", "length"))
    info = model.runtime.info()
    rows = {
        "bundle": str(bundle.path),
        "plugin": f"{info['plugin_path']} ({info['platform']})",
        "reference": f"{len(reference.numbers)} atoms, energy {reference.energy:.8f} {energy_unit}",
        "energy difference": f"{deviation.energy:.2e} {energy_unit}/atom (tolerance {energy_bar:.1e})",
        "force difference": f"{deviation.force:.2e} {energy_unit}/{length_unit} (tolerance {force_bar:.1e})",
    }
    passed = deviation.energy <= energy_bar and deviation.force <= force_bar
    if reference.original is not None and deviation.original is not None:
        energy, force = deviation.original
        bars = tolerances(model.dtype, deviation.largest_energy, deviation.largest_force, reference.original.dtype)
        rows["original"] = (
            f"{reference.original.framework}, energy {reference.original.energy:.8f} {energy_unit}: differences"
            f" {energy:.2e} {energy_unit}/atom, {force:.2e} {energy_unit}/{length_unit}"
            f" (tolerances {bars[0]:.1e}, {bars[1]:.1e})"
        )
        passed = passed and energy <= bars[0] and force <= bars[1]
    for name, (difference, largest) in deviation.outputs.items():
        bar = tolerances(model.dtype, largest, 0.0)[0]
        rows[f"{name} difference"] = (
            f"{difference:.2e} {bundle.manifest['node_outputs'][name]['unit']} (tolerance {bar:.1e})"
        )
        passed = passed and difference <= bar
    progress.close()
    _print_rows({**rows, "result": _RESULTS[passed]})
    return passed


@dataclass(frozen=True)
class _Comparison:
    """What --against and its options say, opened and found good before any work."""

    against: Path
    original: Any
    frames: list[Any]
    picture: Path | None


def _open_comparison(
    bundle: Any, against: Path, structures: Path | None, picture: Path | None, head: str | None, progress: _Progress
) -> _Comparison:
    from . import _parity
    from ._inputs import stored_inputs
    from ._originals import open_original
    from ._reference import stored_reference

    if picture is not None:
        _parity.check_plot(picture)
    frames = (
        _parity.rattled(stored_reference(bundle).atoms())
        if structures is None
        else _parity.read_structures(structures, bundle.manifest["elements"])
    )
    progress(f"load {against}")
    source = bundle.manifest.get("source") or {}
    inputs = stored_inputs(bundle.manifest)
    # What a bundle without graph inputs was exported with is in its weights.
    fixed = {} if inputs else source.get("features")
    original = open_original(against, head or source.get("head"), inputs, fixed)
    return _Comparison(against, original, frames, picture)


def _check_against(bundle: Any, comparison: _Comparison, runtime: dict[str, Any], progress: _Progress) -> bool:
    """Prints the comparison with the original; whether both agree."""
    from . import _parity
    from ._calculator import StableMDCalculator
    from ._reference import tolerances

    original, frames, picture = comparison.original, comparison.frames, comparison.picture
    calculator = StableMDCalculator(bundle.path, **runtime)
    parity = _parity.compare(calculator, original, frames, progress)
    constant = dict(zip(bundle.manifest["elements"], bundle.manifest["atomic_energies"], strict=True))
    energy_bar, force_bar = tolerances(
        bundle.manifest["dtype"], parity.largest_energy(frames, constant), parity.largest_force, original.dtype
    )
    passed = parity.energy <= energy_bar and parity.force <= force_bar
    size = f"{len(frames)}, {sum(map(len, frames))} atoms"
    rows = {
        "original": f"{comparison.against} ({original.framework}, stored in {original.dtype})",
        "structures": f"{size}, largest force {parity.largest_force:.3g} eV/Angstrom",
        "energy difference": f"{parity.energy:.2e} eV/atom (tolerance {energy_bar:.1e})",
        "force difference": f"{parity.force:.2e} eV/Angstrom, rms {parity.force_rms:.2e} (tolerance {force_bar:.1e})",
        "result": _RESULTS[passed],
    }
    if picture is not None:
        _parity.plot(parity, picture, f"{bundle.path.name} against {comparison.against.name}", original.framework)
        rows["plot"] = str(picture)
    progress.close()
    click.echo()
    _print_rows(rows)
    return passed


@cli.command()
@click.option("--clear", is_flag=True, help="Delete all entries.")
def cache(clear: bool) -> None:
    """Show or clear the caches of compiled programs and of compiled kernels."""
    from ._cache import compiled_kernels, compiled_programs
    from ._connector import cache_limit

    limit = cache_limit()
    caches = (compiled_programs(), compiled_kernels())
    for number, one in enumerate(caches):
        if one.folder is None:
            click.echo(f"there is no cache of {one.content}: {one.variable} is 'off' or no home folder is known")
            continue
        count, size = one.count_and_size()
        if clear:
            one.clear()
            click.echo(f"deleted {count} {one.content} ({_size(size)}) from {escaped(str(one.folder))}")
            continue
        rows = {one.content: str(one.folder), "entries": str(count), "size": _size(size)}
        if number == 0:
            rows["limit"] = f"{_size(limit)} (STABLEMD_CACHE_LIMIT)" if limit else "none"
        _print_rows(rows)
