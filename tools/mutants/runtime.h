// The switches that tools/mutants/generate.py writes into copies of the sources: one number a
// mutant, and at most one of them is on in a process, the one that LORRY_MUTANT names. With none
// on, every function here returns what the original code would have computed.
//
// `reached` notes the mutants whose effect could have been seen: those that were asked while the
// mutant's answer differs from the original's. What was not noted cannot change a run, so that
// whoever runs mutants need not run those. Any thread may call everything.
#pragma once

#include <atomic>
#include <cstdint>

namespace lorry::mutants {

// A block of numbers for each file; more than the tree will have for a long time.
inline constexpr int kMutantsMax = 1 << 18;

extern int active;  // 0 for none; set before main() and never changed
extern std::atomic<uint8_t> reached[kMutantsMax];

inline void Note(int id) { reached[id].store(1, std::memory_order_relaxed); }

// For what is replaced whatever it would have done: a statement that is skipped.
inline bool On(int id) {
  Note(id);
  return id == active;
}

// Mutant `id` is true, mutant `id + 1` is false.
inline bool Force(int id, bool value) {
  Note(value ? id + 1 : id);
  if (active == id) return true;
  if (active == id + 1) return false;
  return value;
}

// One constant only: what an operand of && or || is when it does not count, or a literal's opposite.
inline bool Force(int id, bool constant, bool value) {
  if (value != constant) Note(id);
  return active == id ? constant : value;
}

// The other side of a boundary: < for <=, >= for >, and so on. Both are computed where that is free
// of effects; they differ only where left and right are equal.
template <typename T>
bool Less(int id, T left, T right) {
  if (left == right) Note(id);
  return active == id ? left <= right : left < right;
}
template <typename T>
bool LessEqual(int id, T left, T right) {
  if (left == right) Note(id);
  return active == id ? left < right : left <= right;
}

template <typename T>
bool Greater(int id, T left, T right) {
  return Less(id, right, left);
}
template <typename T>
bool GreaterEqual(int id, T left, T right) {
  return LessEqual(id, right, left);
}

}  // namespace lorry::mutants
