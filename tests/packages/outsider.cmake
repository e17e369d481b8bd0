# The CMakeLists.txt of another project, which knows Lorry by its installed package alone.
cmake_minimum_required(VERSION 3.25)
project(outsider LANGUAGES CXX)
find_package(lorry 0.1 REQUIRED)
add_executable(outsider main.cc)
target_compile_features(outsider PRIVATE cxx_std_20)
target_link_libraries(outsider PRIVATE lorry::client)
