# lorry_install_library(client): installs lorry::client, every library of ours that it links, and their headers, for
# find_package(lorry) in other projects.

# Ours among what a target links, itself included, each once.
function(lorry_own_libraries target out)
  set(found ${${out}})
  get_target_property(alias ${target} ALIASED_TARGET)
  if(alias)
    set(target ${alias})
  endif()
  if(NOT target IN_LIST found)
    list(APPEND found ${target})
    get_target_property(linked ${target} INTERFACE_LINK_LIBRARIES)
    foreach(library ${linked})
      string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" library "${library}")
      if(library MATCHES "^lorry(::|_)")
        lorry_own_libraries(${library} found)
      endif()
    endforeach()
  endif()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

function(lorry_install_library name)
  lorry_own_libraries(lorry_${name} libraries)
  foreach(library ${libraries})
    string(REGEX REPLACE "^lorry_" "" exported ${library})
    set_target_properties(${library} PROPERTIES EXPORT_NAME ${exported})
  endforeach()
  install(TARGETS ${libraries} EXPORT lorry COMPONENT dev ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/lorry)
  install(EXPORT lorry NAMESPACE lorry:: FILE lorry-targets.cmake COMPONENT dev
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lorry)
  # Includes are written from the repository's root, and so are they below include/lorry.
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/lib COMPONENT dev
    DESTINATION ${LORRY_INSTALL_INCLUDE} FILES_MATCHING PATTERN "*.h")
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/clients/cpp COMPONENT dev
    DESTINATION ${LORRY_INSTALL_INCLUDE}/clients FILES_MATCHING PATTERN "*.h")
  install(DIRECTORY ${PROJECT_BINARY_DIR}/proto/lorry COMPONENT dev
    DESTINATION ${LORRY_INSTALL_INCLUDE} FILES_MATCHING PATTERN "*.pb.h")
endfunction()
