# stablemd_python_module(<name> <source> <library> <folder>): the nanobind module stablemd.<name>, linked with one of our
# libraries, which is installed in <folder> of the package.
if(NOT STABLEMD_PYTHON)
  return()
endif()

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module Development.SABIModule)
if(NOT TARGET Python::Module)
  message(FATAL_ERROR "Python's headers are missing: install python3-dev, or configure with -DSTABLEMD_PYTHON=OFF")
endif()
execute_process(
  COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
  OUTPUT_VARIABLE nanobind_ROOT
  OUTPUT_STRIP_TRAILING_WHITESPACE)
find_package(nanobind CONFIG REQUIRED)

function(stablemd_python_module name source library folder)
  nanobind_add_module(${name} STABLE_ABI NB_STATIC ${source})
  target_link_libraries(${name} PRIVATE ${library} stablemd_warnings)
  set_target_properties(${name} PROPERTIES BUILD_RPATH "$<TARGET_FILE_DIR:${library}>" INSTALL_RPATH "$ORIGIN/${folder}")
  install(TARGETS ${name} LIBRARY DESTINATION stablemd)
endfunction()
