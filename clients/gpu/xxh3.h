// XXH3-128 of a leaf of an image, taken apart so that many threads share it. xxHash itself does not
// compile for a GPU; tests compare with it.
//
// XXH3 adds up a block of 1 KiB in eight lanes, in sums that may be taken in any order, and mixes the
// lanes once a block. So all blocks of all leaves are summed at a time, where their bytes are at
// hand, and what remains in order is one mixing step for 1 KiB. Inputs of 241 bytes and more only:
// XXH3 has other ways for shorter ones. Little-endian. Pure, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "clients/gpu/block.h"

namespace lorry::gpu {

inline constexpr unsigned kLanes = 8;
inline constexpr unsigned kStripeBytes = 64;  // a word for each lane
inline constexpr unsigned kBlockBytes = 1024;
inline constexpr unsigned kBlockStripes = kBlockBytes / kStripeBytes;
inline constexpr uint64_t kHashedBytesMin = 241;
inline constexpr unsigned kSecretWords = 24;

// The default secret of XXH3, as little-endian words.
LORRY_HD inline uint64_t SecretWord(unsigned index) {
  static constexpr uint64_t kWords[kSecretWords] = {
      0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
      0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
      0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
      0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
      0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
      0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
  };
  return kWords[index];
}

// The eight bytes of `secret`, SecretWord's words, from the byte `at`.
LORRY_HD inline uint64_t SecretAt(const uint64_t* secret, unsigned at) {
  const unsigned word = at / 8, shift = at % 8 * 8;
  if (shift == 0) return secret[word];
  return secret[word] >> shift | secret[word + 1] << (64 - shift);
}

// What a stripe adds to one lane: `word` is the lane's own, `other` its neighbour's (lane ^ 1).
LORRY_HD inline uint64_t StripeTerm(uint64_t word, uint64_t other, uint64_t key) {
  const uint64_t mixed = word ^ key;
  return other + (mixed & 0xffffffff) * (mixed >> 32);
}

// The key of a lane in a stripe of a block.
LORRY_HD inline uint64_t StripeKey(const uint64_t* secret, unsigned stripe, unsigned lane) {
  return secret[stripe + lane];
}

// Of a leaf: the blocks that are followed by a mixing step, and the stripes of the block after them.
// The very last 64 bytes are one more stripe, wherever it begins, with a key of its own.
LORRY_HD constexpr uint64_t MixedBlocks(uint64_t bytes) { return (bytes - 1) / kBlockBytes; }
LORRY_HD constexpr unsigned LastStripes(uint64_t bytes) {
  return static_cast<unsigned>((bytes - 1) % kBlockBytes / kStripeBytes);
}
LORRY_HD inline uint64_t LastKey(const uint64_t* secret, unsigned lane) {
  return SecretAt(secret, kSecretWords * 8 - kStripeBytes - 7 + 8 * lane);
}

LORRY_HD inline uint64_t FirstLane(unsigned lane) {
  static constexpr uint64_t kFirst[kLanes] = {
      0xc2b2ae3d,         0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
      0x85ebca77c2b2ae63, 0x85ebca77,         0x27d4eb2f165667c5, 0x9e3779b1};
  return kFirst[lane];
}

LORRY_HD inline uint64_t MixLane(uint64_t sum, const uint64_t* secret, unsigned lane) {
  return (sum ^ sum >> 47 ^ secret[kSecretWords - kLanes + lane]) * 0x9e3779b1;
}

// Both halves of the 128-bit product, folded.
LORRY_HD inline uint64_t FoldedProduct(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xffffffff, a1 = a >> 32, b0 = b & 0xffffffff, b1 = b >> 32;
  const uint64_t low = a0 * b0, cross = (low >> 32) + (a1 * b0 & 0xffffffff) + a0 * b1;
  const uint64_t high = (a1 * b0 >> 32) + (cross >> 32) + a1 * b1;
  return high ^ (cross << 32 | (low & 0xffffffff));
}

LORRY_HD inline uint64_t MergedLanes(const uint64_t* lanes, const uint64_t* secret, unsigned at,
                                     uint64_t start) {
  for (unsigned i = 0; i < kLanes; i += 2) {
    start += FoldedProduct(lanes[i] ^ SecretAt(secret, at + 8 * i),
                           lanes[i + 1] ^ SecretAt(secret, at + 8 * i + 8));
  }
  start = (start ^ start >> 37) * 0x165667919e3779f9;
  return start ^ start >> 32;
}

// The hash in xxHash's canonical form, big-endian, of an input of `bytes` bytes.
LORRY_HD inline void Digest(const uint64_t* lanes, const uint64_t* secret, uint64_t bytes,
                            unsigned char out[16]) {
  const uint64_t low = MergedLanes(lanes, secret, 11, bytes * 0x9e3779b185ebca87);
  const uint64_t high =
      MergedLanes(lanes, secret, kSecretWords * 8 - 64 - 11, ~(bytes * 0xc2b2ae3d27d4eb4f));
  for (unsigned i = 0; i < 8; ++i) {
    out[i] = static_cast<unsigned char>(high >> (56 - 8 * i));
    out[8 + i] = static_cast<unsigned char>(low >> (56 - 8 * i));
  }
}

}  // namespace lorry::gpu
