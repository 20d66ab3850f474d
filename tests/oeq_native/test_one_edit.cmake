# Adds one line to the list of targets and nothing else, builds the library from it, and asks for the target everywhere:
# in the table's C test program and in XLA's registry through the connector.
# cmake -DSOURCE=<oeq_native/src> -DWORK=<folder> -DCXX=<compiler> -DINCLUDES=<list> -DTARGETS_PROGRAM=... -DPLUGIN=... -P test_one_edit.cmake
file(REMOVE_RECURSE ${WORK})
file(COPY ${SOURCE}/ DESTINATION ${WORK}/src)
file(READ ${WORK}/src/targets.h text)
string(REPLACE "{\"tp_forward\", Family::kTensorProduct, Order::kForward},"
               "{\"tp_forward\", Family::kTensorProduct, Order::kForward},\n    {\"tp_forward_twin\", Family::kTensorProduct, Order::kForward},"
               edited "${text}")
if(edited STREQUAL text)
  message(FATAL_ERROR "targets.h has no line of tp_forward to add one after")
endif()
file(WRITE ${WORK}/src/targets.h "${edited}")

# What does not depend on targets.h is not compiled again: those objects are given.
set(objects ${OBJECTS})
list(FILTER objects EXCLUDE REGEX "(table|handlers|call_site)\\.cc\\.o$")
list(TRANSFORM INCLUDES PREPEND "-I")
execute_process(
  COMMAND ${CXX} -std=c++17 -O0 -fPIC -shared -fvisibility=hidden -I${WORK}/src ${INCLUDES} ${WORK}/src/table.cc ${WORK}/src/handlers.cc
          ${WORK}/src/call_site.cc ${objects} -Wl,-z,nodelete -ldl -lpthread -o ${WORK}/libextended.so
  RESULT_VARIABLE failed ERROR_VARIABLE log)
if(failed)
  message(FATAL_ERROR "${log}")
endif()
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env STABLEMD_FFI_PATH=${WORK}/libextended.so ${TARGETS_PROGRAM} ${PLUGIN} cpu tp_forward
          tp_forward_twin conv_double_backward no_such_target
  OUTPUT_VARIABLE printed)
set(expected "providers: 1\ntp_forward: registered\ntp_forward_twin: registered\nconv_double_backward: registered\nno_such_target: missing\n")
if(NOT printed STREQUAL expected)
  message(FATAL_ERROR "expected\n${expected}but provider_targets printed\n${printed}")
endif()

# JAX's dictionary, where the module is built.
if(PYTHON_MODULE)
  file(COPY ${WORK}/libextended.so DESTINATION ${WORK}/lib)
  file(RENAME ${WORK}/lib/libextended.so ${WORK}/lib/liboeq_native.so)
  get_filename_component(folder ${PYTHON_MODULE} DIRECTORY)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env LD_PRELOAD=${WORK}/lib/liboeq_native.so PYTHONPATH=${folder} ${PYTHON} -c
            "import _oeq_native as m; print(*m.registrations('cpu')); print(*m.registrations('cuda'))"
    OUTPUT_VARIABLE printed ERROR_VARIABLE log)
  set(line "tp_forward tp_forward_twin tp_backward tp_double_backward conv_forward conv_backward conv_double_backward contraction_forward contraction_backward\n")
  if(NOT printed STREQUAL "${line}${line}")
    message(FATAL_ERROR "registrations() held\n${printed}${log}")
  endif()
endif()
