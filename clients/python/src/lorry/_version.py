"""The client's version; the same as the programs' in CMakeLists.txt, and compared with it by a test."""

__version__ = "0.1.0"
