"""The nanobind module: JAX's registration dictionary comes from the library's table."""

import os
import subprocess
import sys

import pytest

_oeq_native = pytest.importorskip("stablemd._oeq_native")

TARGETS = [
    "tp_forward",
    "tp_backward",
    "tp_double_backward",
    "conv_forward",
    "conv_backward",
    "conv_double_backward",
    "contraction_forward",
    "contraction_backward",
]


@pytest.mark.parametrize(
    "platform, stages",
    [("cpu", ["instantiate", "execute"]), ("cuda", ["instantiate", "initialize", "execute"])],
)
def test_registrations_hold_every_target_with_its_stages(platform, stages):
    registrations = _oeq_native.registrations(platform)
    assert list(registrations) == TARGETS
    for bundle in registrations.values():
        assert list(bundle) == stages
        assert all(type(handler).__name__ == "PyCapsule" for handler in bundle.values())


def test_types_come_with_id_and_info():
    types = _oeq_native.type_registrations()
    assert list(types) == ["oeq_native.CallSite"]
    assert list(types["oeq_native.CallSite"]) == ["type_id", "type_info"]


def test_an_unknown_platform_is_refused():
    with pytest.raises(ValueError, match='platform must be "cpu" or "cuda", is "rocm"'):
        _oeq_native.registrations("rocm")


def test_stats_have_the_members_of_the_header():
    stats = _oeq_native.stats()
    assert set(stats) == {
        "records",
        "requests",
        "compilations",
        "memory_hits",
        "disk_hits",
        "failures",
        "waits",
        "compile_seconds",
        "wait_seconds",
    }


def test_a_library_of_another_version_is_refused_at_import(tmp_path):
    source, library = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text("static unsigned table[16] = {99}; void *oeq_ffi_handler_table(void) { return table; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    done = subprocess.run(
        [sys.executable, "-c", "import stablemd._oeq_native"],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "ImportError: liboeq_native has a handler table of ABI version 99, this module knows 3" in done.stderr
