// Runs the code of one launch, which Python has read into words (see code.py).
//
// words:   buffers, steps, [bytes, argument, result] for each buffer, then the steps.
//          A buffer has `bytes` times dimension 0 of the argument (-1: just so many bytes) and lies
//          at the pointer `result` (-1: in scratch memory).
// step:    opcode, length in words, then what the opcode says.
// place:   [kind, index, offset]: bytes from where an argument or a buffer begins.
// number:  [kind, index, offset]: `offset` times dimension 0 of an argument, or `offset` itself.
//
// KERNEL:  address, operands, then a place or a number for each operand.
// PRODUCT: bytes of an element, place of out, its rows apart, [factor, argument] of the rows, inner
//          size, columns, place of x, its rows apart, place of w, its rows apart, whether w lies
//          turned, place of the bias (kind -1: none), its rows apart (0: one for all rows).
// LOOK:    buffer, place of int64 indices, [factor, argument] of their count, limit, whether they
//          may be negative. The buffer is where the indices are.
//
// Words are trusted: they come from code.py alone.

#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "products.hpp"

namespace {

enum Status { DONE = 0, OUT_OF_RANGE = 1, FAILED = 2 };
enum Opcode { KERNEL = 1, PRODUCT = 2, LOOK = 3 };
enum Kind { ABSENT = -1, ARGUMENT = 0, BUFFER = 1, SIZE = 2, NUMBER = 3 };

constexpr int64_t ALIGNMENT = 64;
constexpr size_t MOST_PARAMETERS = 160;

// Sizes are 32 or 64 bits wide by library; where the low half comes first, one pointer serves both.
template <typename T>
using Gemm = void (*)(const char*, const char*, const int64_t*, const int64_t*, const int64_t*,
                      const T*, const T*, const int64_t*, const T*, const int64_t*, const T*, T*,
                      const int64_t*);

struct Frame {
  char** arguments;
  const int64_t* sizes;
  char** buffers;

  char* place(const int64_t* word) const {
    return (word[0] == ARGUMENT ? arguments : buffers)[word[1]] + word[2];
  }
  int64_t number(const int64_t* word) const {
    return word[0] == SIZE ? word[2] * sizes[word[1]] : word[2];
  }
  int64_t operand(const int64_t* word) const {
    return word[0] <= BUFFER ? reinterpret_cast<int64_t>(place(word)) : number(word);
  }
};

// ---- memory -------------------------------------------------------------------------------------

inline int64_t times(const int64_t* word, const int64_t* sizes) {
  return word[1] < 0 ? word[0] : word[0] * sizes[word[1]];
}

inline int64_t aligned(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

// Scratch memory begins with the pointers to buffers.
inline int64_t scratch_bytes(const int64_t* words, const int64_t* sizes) {
  int64_t bytes = ALIGNMENT + aligned(words[0] * sizeof(char*));
  for (int64_t buffer = 0; buffer < words[0]; ++buffer) {
    const int64_t* word = words + 2 + 3 * buffer;
    if (word[2] < 0) bytes += aligned(times(word, sizes));
  }
  return bytes;
}

inline char** place_buffers(const int64_t* words, const int64_t* sizes, char* scratch,
                            char** results) {
  char* next = reinterpret_cast<char*>(aligned(reinterpret_cast<int64_t>(scratch)));
  char** buffers = reinterpret_cast<char**>(next);
  next += aligned(words[0] * sizeof(char*));
  for (int64_t buffer = 0; buffer < words[0]; ++buffer) {
    const int64_t* word = words + 2 + 3 * buffer;
    buffers[buffer] = word[2] < 0 ? next : results[word[2]];
    if (word[2] < 0) next += aligned(times(word, sizes));
  }
  return buffers;
}

// ---- kernels ------------------------------------------------------------------------------------

template <size_t>
using Parameter = int64_t;

template <size_t... I>
inline void call_with(int64_t address, const int64_t* values, std::index_sequence<I...>) {
  reinterpret_cast<void (*)(Parameter<I>...)>(address)(values[I]...);
}

template <size_t count>
void call_of(int64_t address, const int64_t* values) {
  call_with(address, values, std::make_index_sequence<count>{});
}

using Caller = void (*)(int64_t, const int64_t*);

template <size_t... counts>
constexpr std::array<Caller, sizeof...(counts)> callers_of(std::index_sequence<counts...>) {
  return {&call_of<counts>...};
}

constexpr auto CALLERS = callers_of(std::make_index_sequence<MOST_PARAMETERS + 1>{});

inline void run_kernel(const Frame& frame, const int64_t* word) {
  int64_t values[MOST_PARAMETERS];
  for (int64_t i = 0; i < word[1]; ++i) values[i] = frame.operand(word + 2 + 3 * i);
  CALLERS[word[1]](word[0], values);
}

// ---- products -----------------------------------------------------------------------------------

// What launches of one pass have in common; `rows`: those of all launches of a block.
struct Pass {
  Gemm<float> sgemm;
  Gemm<double> dgemm;
  int64_t threads, number, rows;
};

// The rows from which on it pays to pack a matrix, one that lies turned or one that does not.
constexpr int64_t LEAST_TURNED_ROWS = 4, LEAST_PACKED_ROWS = 32;
// The rows up to which this is faster than a BLAS where vectors are short.
constexpr int64_t FEW_ROWS = 32;

// A product without a BLAS; whether it was worth it.
template <typename T>
bool multiply_here(const Operands<T>& rows, const Matrix<T>& matrix, bool stays, const Pass& pass) {
  if (!is_wide<T>(matrix.inner) || !is_wide<T>(matrix.columns)) return false;
  if (!IS_FAST && rows.count > FEW_ROWS) return false;
  const int64_t expected = stays ? std::max(pass.rows, rows.count) : rows.count;
  const bool is_packed = expected >= (matrix.is_turned ? LEAST_TURNED_ROWS : LEAST_PACKED_ROWS);
  if (matrix.is_turned && !is_packed) return false;
  const T* packed = nullptr;
  if (is_packed) packed = stays ? packs<T>().of(matrix, pass.number) : packs<T>().of(matrix);
  multiply(rows, matrix, packed, pass.threads);
  return true;
}

// A BLAS counts columns first, so it is given all matrices turned: out' = w' x'.
template <typename T>
void run_product(const Frame& frame, const int64_t* word, Gemm<T> gemm, const Pass& pass) {
  T* out = reinterpret_cast<T*>(frame.place(word + 1));
  const int64_t *out_apart = word + 4, *inner = word + 7, *columns = word + 8;
  const int64_t *x_apart = word + 12, *w_apart = word + 16;
  const int64_t rows = times(word + 5, frame.sizes);
  if (rows == 0) return;
  const bool has_bias = word[18] != ABSENT;
  const T* bias = has_bias ? reinterpret_cast<const T*>(frame.place(word + 18)) : nullptr;
  const T* x = reinterpret_cast<const T*>(frame.place(word + 9));
  const T* w = reinterpret_cast<const T*>(frame.place(word + 13));
  if (!has_bias || !word[21]) {
    const Operands<T> given{x, *x_apart, 1, out, *out_apart, bias, rows, false};
    const Matrix<T> matrix{w, *w_apart, word[17] != 0, *inner, *columns};
    if (multiply_here(given, matrix, word[13] == ARGUMENT, pass)) return;
  }
  const T one = 1, zero = 0;
  if (has_bias)
    for (int64_t row = 0; row < rows; ++row)
      std::memmove(out + row * *out_apart, bias + row * word[21], *columns * sizeof(T));
  gemm(word[17] ? "T" : "N", "N", columns, &rows, inner, &one, w, w_apart, x, x_apart,
       has_bias ? &one : &zero, out, out_apart);
}

// ---- indices ------------------------------------------------------------------------------------

inline bool are_in_range(const Frame& frame, const int64_t* word) {
  const int64_t* indices = reinterpret_cast<const int64_t*>(frame.place(word + 1));
  const int64_t count = times(word + 4, frame.sizes);
  const int64_t limit = frame.number(word + 6), least = word[9] ? -limit : 0;
  for (int64_t i = 0; i < count; ++i)
    if (indices[i] < least || indices[i] >= limit) return false;
  frame.buffers[word[0]] = frame.place(word + 1);
  return true;
}

// ---- steps --------------------------------------------------------------------------------------

inline int run_steps(const Frame& frame, const int64_t* words, const Pass& pass) {
  const int64_t* step = words + 2 + 3 * words[0];
  for (int64_t left = words[1]; left > 0; --left, step += step[1]) {
    if (step[0] == KERNEL)
      run_kernel(frame, step + 2);
    else if (step[0] == LOOK) {
      if (!are_in_range(frame, step + 2)) return OUT_OF_RANGE;
    } else if (step[2] == sizeof(float))
      run_product<float>(frame, step + 2, pass.sgemm, pass);
    else
      run_product<double>(frame, step + 2, pass.dgemm, pass);
  }
  return DONE;
}

// `sizes` is dimension 0 of each argument; scratch memory has at least scratch_bytes.
inline int run_code(const int64_t* words, char** arguments, const int64_t* sizes, char* scratch,
                    char** results, const Pass& pass) {
  try {
    const Frame frame{arguments, sizes, place_buffers(words, sizes, scratch, results)};
    return run_steps(frame, words, pass);
  } catch (...) {
    return FAILED;
  }
}

}  // namespace
