// Products of few rows with a matrix, where a BLAS spends more time on arranging the matrix than on
// multiplying.
//
// A tile of results stays in registers while the matrix streams by once: as many rows as there are
// registers for, and a few columns. A matrix has at least a vector of rows and of columns.

#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, TILE_ROWS = 6, TILE_COLUMNS = 4;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32, TILE_ROWS = 4, TILE_COLUMNS = 2;
#else
constexpr int VECTOR_BYTES = 16, TILE_ROWS = 4, TILE_COLUMNS = 2;
#endif

template <typename T>
struct Vectors {
  static constexpr int SIZE = VECTOR_BYTES / sizeof(T);
  typedef T Vector __attribute__((vector_size(VECTOR_BYTES)));

  static Vector load(const T* from) {
    Vector vector;
    std::memcpy(&vector, from, VECTOR_BYTES);
    return vector;
  }
  static void store(T* to, const Vector& vector) { std::memcpy(to, &vector, VECTOR_BYTES); }

  // The same with zeros for its first elements, whatever they are.
  static Vector without_first(int64_t count, const Vector& vector) {
    Vector places;
    for (int k = 0; k < SIZE; ++k) places[k] = T(k);
    return places >= Vector{} + T(count) ? vector : Vector{};
  }

  // Half of a vector is added to the other half, and so on, as long as halves are vectors.
  static T sum(const Vector& vector) { return folded<VECTOR_BYTES>(vector); }

  template <int BYTES, typename Wide>
  static T folded(const Wide& wide) {
    typedef T Narrow __attribute__((vector_size(BYTES / 2)));
    Narrow low, high;
    std::memcpy(&low, &wide, BYTES / 2);
    std::memcpy(&high, reinterpret_cast<const char*>(&wide) + BYTES / 2, BYTES / 2);
    low += high;
    if constexpr (BYTES > 32) return folded<BYTES / 2>(low);
    T total = low[0];
    for (size_t k = 1; k < BYTES / 2 / sizeof(T); ++k) total += low[k];
    return total;
  }
};

// y = x w + bias: rows lie `apart` elements from each other.
template <typename T>
struct SmallProduct {
  const T* x;
  int64_t x_apart;
  const T* w;
  int64_t w_apart;
  T* y;
  int64_t y_apart;
  const T* bias;
  int64_t inner, columns;
};

// Columns from `first` on, so many vectors of them.
template <typename T, int ROWS, int WIDTH>
inline void columns_tile(const SmallProduct<T>& p, int64_t row, int64_t first) {
  using V = Vectors<T>;
  typename V::Vector sums[ROWS][WIDTH];
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < WIDTH; ++c)
      sums[r][c] = p.bias ? V::load(p.bias + first + c * V::SIZE) : typename V::Vector{};
  for (int64_t k = 0; k < p.inner; ++k) {
    typename V::Vector weights[WIDTH];
    for (int c = 0; c < WIDTH; ++c) weights[c] = V::load(p.w + k * p.w_apart + first + c * V::SIZE);
    for (int r = 0; r < ROWS; ++r) {
      const T factor = p.x[(row + r) * p.x_apart + k];
      for (int c = 0; c < WIDTH; ++c) sums[r][c] += factor * weights[c];
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < WIDTH; ++c)
      V::store(p.y + (row + r) * p.y_apart + first + c * V::SIZE, sums[r][c]);
}

// The last columns overlap those before them, which are computed twice.
template <typename T, int ROWS>
inline void by_columns(const SmallProduct<T>& p, int64_t row) {
  constexpr int SIZE = Vectors<T>::SIZE, WIDE = SIZE * TILE_COLUMNS;
  int64_t first = 0;
  for (; first + WIDE <= p.columns; first += WIDE)
    columns_tile<T, ROWS, TILE_COLUMNS>(p, row, first);
  for (; first + SIZE <= p.columns; first += SIZE) columns_tile<T, ROWS, 1>(p, row, first);
  if (first < p.columns) columns_tile<T, ROWS, 1>(p, row, p.columns - SIZE);
}

// Results of WIDTH rows of the turned matrix, from `first` on.
template <typename T, int ROWS, int WIDTH>
inline void dots_tile(const SmallProduct<T>& p, int64_t row, int64_t first,
                      const typename Vectors<T>::Vector* x) {
  using V = Vectors<T>;
  typename V::Vector sums[ROWS][WIDTH] = {};
  const T* w = p.w + first * p.w_apart;
  int64_t k = 0;
  for (; k + V::SIZE <= p.inner; k += V::SIZE, x += ROWS) {
    typename V::Vector weights[WIDTH];
    for (int c = 0; c < WIDTH; ++c) weights[c] = V::load(w + c * p.w_apart + k);
    for (int r = 0; r < ROWS; ++r)
      for (int c = 0; c < WIDTH; ++c) sums[r][c] += x[r] * weights[c];
  }
  if (k < p.inner)
    for (int c = 0; c < WIDTH; ++c) {
      const auto end = V::load(w + c * p.w_apart + p.inner - V::SIZE);
      const auto weights = V::without_first(k + V::SIZE - p.inner, end);
      for (int r = 0; r < ROWS; ++r) sums[r][c] += x[r] * weights;
    }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < WIDTH; ++c)
      p.y[(row + r) * p.y_apart + first + c] =
          V::sum(sums[r][c]) + (p.bias ? p.bias[first + c] : T(0));
}

// Rows are copied so that vectors of one step lie behind each other. The last elements of a row are a
// vector whose first elements, which came before, are zero: so are those of the matrix, which may be
// infinite.
template <typename T, int ROWS>
const typename Vectors<T>::Vector* packed(const SmallProduct<T>& p, int64_t row) {
  using V = Vectors<T>;
  thread_local std::vector<typename V::Vector> memory;
  const int64_t steps = p.inner / V::SIZE, over = p.inner % V::SIZE;
  memory.resize((steps + 1) * ROWS);
  for (int r = 0; r < ROWS; ++r) {
    const T* from = p.x + (row + r) * p.x_apart;
    for (int64_t step = 0; step < steps; ++step)
      memory[step * ROWS + r] = V::load(from + step * V::SIZE);
    if (over) {
      const auto last = V::load(from + p.inner - V::SIZE);
      memory[steps * ROWS + r] = V::without_first(V::SIZE - over, last);
    }
  }
  return memory.data();
}

template <typename T, int ROWS>
inline void by_dots(const SmallProduct<T>& p, int64_t row) {
  const auto* x = packed<T, ROWS>(p, row);
  int64_t first = 0;
  for (; first + TILE_COLUMNS <= p.columns; first += TILE_COLUMNS)
    dots_tile<T, ROWS, TILE_COLUMNS>(p, row, first, x);
  for (; first < p.columns; ++first) dots_tile<T, ROWS, 1>(p, row, first, x);
}

template <typename T, int ROWS>
inline void rows_of(const SmallProduct<T>& p, int64_t row, int64_t rows, bool is_turned) {
  if (rows >= ROWS)
    is_turned ? by_dots<T, ROWS>(p, row) : by_columns<T, ROWS>(p, row);
  else if constexpr (ROWS > 1)
    rows_of<T, ROWS - 1>(p, row, rows, is_turned);
}

// Rows up to which this is faster than a BLAS.
constexpr int64_t FEW_ROWS = 32;

template <typename T>
bool is_wide(int64_t size) {
  return size >= Vectors<T>::SIZE;
}

template <typename T>
void multiply(const SmallProduct<T>& p, int64_t rows, bool is_turned) {
  for (int64_t row = 0; row < rows; row += TILE_ROWS)
    rows_of<T, TILE_ROWS>(p, row, rows - row, is_turned);
}

}  // namespace
