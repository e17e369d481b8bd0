// A tree of files that does what an input says, in a directory of its own: `root/`, which the reader
// may read beneath, and `elsewhere/`, which it may not. Whatever links the input makes, nothing
// outside is ever written. One thread.
#pragma once

#include <string>
#include <string_view>

#include "tests/fuzz/script.h"
#include "tests/testing/temp_dir.h"

namespace lorry::proxy::fuzz {

class Tree {
 public:
  Tree();
  ~Tree();
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  // As README.md has them; what cannot be done is not.
  void Do(const lorry::fuzz::Command& command);
  // Nothing in root/, and in elsewhere/a what a reader would take.
  void Clear();
  std::string operator/(std::string_view relative) const { return folder_ / relative; }

 private:
  const TempDir folder_{TempDir::Memory()};
  int fd_ = -1;
};

}  // namespace lorry::proxy::fuzz
