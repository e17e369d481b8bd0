# find_package(lorry) gives lorry::client, the C++ client (clients/cpp), and what it links.
include(CMakeFindDependencyMacro)
# Protobuf in module mode first: Debian ships no protobuf-config.cmake, and gRPC's config asks for it.
find_dependency(Threads)
find_dependency(Protobuf)
find_dependency(gRPC CONFIG)
find_dependency(absl CONFIG)
find_dependency(spdlog CONFIG)
find_dependency(nlohmann_json CONFIG)
find_dependency(OpenSSL)
find_dependency(PkgConfig)
pkg_check_modules(UCX REQUIRED IMPORTED_TARGET ucx)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
include(${CMAKE_CURRENT_LIST_DIR}/lorry-targets.cmake)
