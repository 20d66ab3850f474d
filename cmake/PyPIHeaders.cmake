# Include folders of headers that PyPI packages carry, as imported targets: pypi::pjrt, pypi::xla_ffi, pypi::json,
# pypi::mpi; and pypi_folder() to ask where a package lies.

# pypi_folder(<result> <module> <path inside the module's folder>): "" where the module is not installed.
function(pypi_folder result module path)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u, pathlib, sys; s = u.find_spec('${module}'); \
s or sys.exit(); print(pathlib.Path(list(s.submodule_search_locations)[0], '${path}'), end='')"
    OUTPUT_VARIABLE folder ERROR_QUIET)
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# pypi_headers(<target> <PyPI name> <header that must exist> <folder>...): the first folder that holds the header.
function(pypi_headers target package header)
  foreach(folder IN LISTS ARGN)
    if(folder AND EXISTS "${folder}/${header}")
      add_library(${target} INTERFACE IMPORTED GLOBAL)
      target_include_directories(${target} INTERFACE "${folder}")
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "${header} not found: run `${Python_EXECUTABLE} -m pip install ${package}`")
endfunction()

pypi_folder(pjrt_folder xla_plugins.xla_cpu_pjrt include)
pypi_folder(jaxlib_folder jaxlib include)
pypi_folder(json_folder nlohmann_json include)
pypi_headers(pypi::pjrt xla-cpu-pjrt pjrt_c_api.h "${pjrt_folder}")
pypi_headers(pypi::xla_ffi jaxlib xla/ffi/api/c_api.h "${jaxlib_folder}")
pypi_headers(pypi::json nlohmann-json nlohmann/json.hpp "${json_folder}")
