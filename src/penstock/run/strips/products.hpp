// Products of rows with a matrix, where a BLAS spends more time on arranging than on multiplying.
//
// A tile of results stays in registers while a piece of the matrix, of a few columns, streams by. A
// matrix may be packed first: its pieces lie one behind the other then, each as the tile reads it. A
// matrix has at least a vector of rows and of columns.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, TILE_ROWS = 6, TILE_COLUMNS = 4;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int VECTOR_BYTES = 32, TILE_ROWS = 6, TILE_COLUMNS = 2;
#else
constexpr int VECTOR_BYTES = 16, TILE_ROWS = 4, TILE_COLUMNS = 2;
#endif

// Whether there are vectors and registers enough to be as fast as a BLAS with many rows, too.
constexpr bool IS_FAST = VECTOR_BYTES >= 32;

template <int BYTES>
struct Whole;
template <>
struct Whole<4> {
  typedef int32_t Type;
};
template <>
struct Whole<8> {
  typedef int64_t Type;
};

template <typename T>
struct Vectors {
  static constexpr int SIZE = VECTOR_BYTES / sizeof(T);
  typedef T Vector __attribute__((vector_size(VECTOR_BYTES)));
  typedef typename Whole<sizeof(T)>::Type Lane;
  typedef Lane Lanes __attribute__((vector_size(VECTOR_BYTES)));

  static Vector load(const T* from) {
    Vector vector;
    std::memcpy(&vector, from, VECTOR_BYTES);
    return vector;
  }
  static void store(T* to, const Vector& vector) { std::memcpy(to, &vector, VECTOR_BYTES); }

  // The same but for the first elements.
  static Vector load_behind(int64_t first, const T* from) {
    if (first == 0) return load(from);
    T elements[SIZE] = {};
    std::memcpy(elements + first, from + first, (SIZE - first) * sizeof(T));
    return load(elements);
  }
  static void store_behind(int64_t first, T* to, const Vector& vector) {
    if (first == 0) return store(to, vector);
    T elements[SIZE];
    store(elements, vector);
    std::memcpy(to + first, elements + first, (SIZE - first) * sizeof(T));
  }

  // As many vectors as a vector has elements, seen as a matrix, are turned: blocks of 1, 2, 4, ...
  // elements change places with those on the other side of the diagonal.
  static void turn(Vector* rows) { turn_blocks<1>(rows); }

  template <int BLOCK>
  static void turn_blocks(Vector* rows) {
    if constexpr (BLOCK < SIZE) {
      for (int r = 0; r < SIZE; ++r) {
        if (r & BLOCK) continue;
        const Vector low = rows[r], high = rows[r + BLOCK];
        rows[r] = mixed<BLOCK, 0>(low, high, std::make_integer_sequence<Lane, SIZE>{});
        rows[r + BLOCK] = mixed<BLOCK, BLOCK>(low, high, std::make_integer_sequence<Lane, SIZE>{});
      }
      turn_blocks<2 * BLOCK>(rows);
    }
  }

  // Blocks of one parity of both vectors, those of the first one to the left.
  template <Lane BLOCK, Lane PARITY, Lane... lanes>
  static Vector mixed(const Vector& low, const Vector& high,
                      std::integer_sequence<Lane, lanes...>) {
#if defined(__clang__)
    return __builtin_shufflevector(
        low, high, (((lanes & ~BLOCK) | PARITY) + (lanes & BLOCK ? SIZE : 0))...);
#else
    return __builtin_shuffle(
        low, high, Lanes{(((lanes & ~BLOCK) | PARITY) + (lanes & BLOCK ? SIZE : 0))...});
#endif
  }
};

template <typename T>
bool is_wide(int64_t size) {
  return size >= Vectors<T>::SIZE;
}

// A matrix: its rows, or, turned, its columns lie `apart` elements from each other.
template <typename T>
struct Matrix {
  const T* w;
  int64_t apart;
  bool is_turned;
  int64_t inner, columns;

  bool operator==(const Matrix& other) const {
    return w == other.w && apart == other.apart && is_turned == other.is_turned &&
           inner == other.inner && columns == other.columns;
  }
};

// y = x w + bias, or added to y: rows lie `apart` elements from each other, and so do the elements of
// a row of x.
template <typename T>
struct Operands {
  const T* x;
  int64_t x_apart, x_step;
  T* y;
  int64_t y_apart;
  const T* bias;
  int64_t count;
  bool is_added;
};

// Some columns: where they begin, how many vectors they are, where they lie in a packed matrix, and
// how many elements of the first vector are other pieces'.
struct Piece {
  int64_t first;
  int width;
  int64_t packed, others;
};

// Pieces of a matrix. The last one overlaps the one before it.
template <typename T>
struct Pieces {
  static constexpr int64_t SIZE = Vectors<T>::SIZE, WIDE = SIZE * TILE_COLUMNS;
  int64_t inner, columns, whole, rest, count;

  explicit Pieces(const Matrix<T>& m)
      : inner(m.inner), columns(m.columns), whole(columns / WIDE) {
    rest = (columns % WIDE + SIZE - 1) / SIZE;
    count = whole + (rest == 0 ? 0 : rest * SIZE <= columns ? 1 : 2);
  }

  Piece operator[](int64_t number) const {
    const int64_t packed = number * WIDE * inner;
    const int64_t others = (SIZE - columns % SIZE) % SIZE;
    if (number < whole) return {number * WIDE, TILE_COLUMNS, packed, 0};
    if (count == whole + 1) return {columns - rest * SIZE, int(rest), packed, others};
    if (number == whole) return {0, int(rest - 1), 0, 0};
    return {columns - SIZE, 1, (rest - 1) * SIZE * inner, others};
  }

  // The elements of the packed matrix.
  int64_t elements() const { return (whole * WIDE + rest * SIZE) * inner; }
};

// ---- packing ------------------------------------------------------------------------------------

template <typename T>
void pack_piece(const Matrix<T>& m, const Piece& piece, T* to) {
  using V = Vectors<T>;
  const int64_t wide = piece.width * V::SIZE;
  if (!m.is_turned) {
    for (int64_t k = 0; k < m.inner; ++k)
      std::memcpy(to + k * wide, m.w + k * m.apart + piece.first, wide * sizeof(T));
    return;
  }
  for (int64_t c = 0; c < wide; c += V::SIZE)
    for (int64_t at = 0; at < m.inner; at += V::SIZE) {
      const int64_t k = std::min(at, m.inner - V::SIZE);  // the last rows overlap those before
      typename V::Vector block[V::SIZE];
      for (int j = 0; j < V::SIZE; ++j) block[j] = V::load(m.w + (piece.first + c + j) * m.apart + k);
      V::turn(block);
      for (int j = 0; j < V::SIZE; ++j) V::store(to + (k + j) * wide + c, block[j]);
    }
}

template <typename T>
void pack(const Matrix<T>& m, T* to) {
  const Pieces<T> pieces(m);
  for (int64_t k = 0; k < pieces.count; ++k) pack_piece(m, pieces[k], to + pieces[k].packed);
}

// ---- products -----------------------------------------------------------------------------------

// Rows of a piece, from one to another: so many of the sums are made at once, which begin as the bias
// or as what is there.
template <typename T>
struct Part {
  const T* w;
  int64_t apart, first, others, inner, row, end;
  const T* x;
  bool is_added;
};

template <typename T, int ROWS, int WIDTH>
inline void tile(const Operands<T>& o, const Part<T>& part, int64_t row) {
  using V = Vectors<T>;
  typename V::Vector sums[ROWS][WIDTH];
  const T* x = part.x + row * o.x_apart;
  T* y = o.y + row * o.y_apart + part.first;
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < WIDTH; ++c)
      sums[r][c] = part.is_added ? V::load_behind(c ? 0 : part.others, y + r * o.y_apart + c * V::SIZE)
                   : o.bias      ? V::load(o.bias + part.first + c * V::SIZE)
                                 : typename V::Vector{};
  for (int64_t k = 0; k < part.inner; ++k) {
    typename V::Vector weights[WIDTH];
    for (int c = 0; c < WIDTH; ++c) weights[c] = V::load(part.w + k * part.apart + c * V::SIZE);
    for (int r = 0; r < ROWS; ++r) {
      const T factor = x[r * o.x_apart + k * o.x_step];
      for (int c = 0; c < WIDTH; ++c) sums[r][c] += factor * weights[c];
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < WIDTH; ++c)
      V::store_behind(c ? 0 : part.others, y + r * o.y_apart + c * V::SIZE, sums[r][c]);
}

template <typename T, int ROWS, int WIDTH>
inline void tiles(const Operands<T>& o, const Part<T>& part, int64_t row) {
  for (; row + ROWS <= part.end; row += ROWS) tile<T, ROWS, WIDTH>(o, part, row);
  if constexpr (ROWS > 1)
    if (row < part.end) tiles<T, ROWS - 1, WIDTH>(o, part, row);
}

template <typename T, int WIDTH = TILE_COLUMNS>
inline void tiles_of_width(const Operands<T>& o, const Part<T>& part, int width) {
  if (width == WIDTH)
    tiles<T, TILE_ROWS, WIDTH>(o, part, part.row);
  else if constexpr (WIDTH > 1)
    tiles_of_width<T, WIDTH - 1>(o, part, width);
}

// Rows that one thread takes at once, rows of the matrix that stay in the cache meanwhile, and the
// multiplications from which on other threads help.
constexpr int64_t ROWS_A_TASK = 16 * TILE_ROWS, STAYING_ROWS = 512, SHARED_WORK = 1 << 20;

inline int64_t tasks_of_piece(int64_t rows) { return (rows + ROWS_A_TASK - 1) / ROWS_A_TASK; }

template <typename T>
void multiply_task(const Operands<T>& o, const Matrix<T>& m, const T* packed, int64_t task) {
  const int64_t each = tasks_of_piece(o.count);
  const Piece piece = Pieces<T>(m)[task / each];
  Part<T> part;
  part.first = piece.first;
  part.others = piece.others;
  part.row = task % each * ROWS_A_TASK;
  part.end = std::min(part.row + ROWS_A_TASK, o.count);
  part.apart = packed ? piece.width * Vectors<T>::SIZE : m.apart;
  const T* w = packed ? packed + piece.packed : m.w + piece.first;
  for (int64_t k = 0; k < m.inner || k == 0; k += STAYING_ROWS) {
    part.inner = std::min(STAYING_ROWS, m.inner - k);
    part.w = w + k * part.apart;
    part.x = o.x + k * o.x_step;
    part.is_added = o.is_added || k > 0;
    tiles_of_width<T>(o, part, piece.width);
  }
}

// `packed` is the matrix as pack() leaves it, or null where it is read where it lies, not turned.
template <typename T>
void multiply(const Operands<T>& o, const Matrix<T>& m, const T* packed, int64_t threads) {
  const int64_t tasks = Pieces<T>(m).count * tasks_of_piece(o.count);
  if (threads > 1 && o.count * m.inner * m.columns >= SHARED_WORK) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t task = 0; task < tasks; ++task) multiply_task(o, m, packed, task);
  } else {
    for (int64_t task = 0; task < tasks; ++task) multiply_task(o, m, packed, task);
  }
}

// ---- packed matrices ----------------------------------------------------------------------------

// The matrices that a pass has packed: they do not change while it lasts. Memory is used again by
// the next pass of the thread, unless it is much.
template <typename T>
class Packs {
  using Vector = typename Vectors<T>::Vector;
  struct Packed {
    Matrix<T> matrix;
    std::vector<Vector> memory;
  };
  static constexpr size_t MOST_KEPT = (size_t(64) << 20) / sizeof(Vector);

  std::vector<Packed> packed;
  size_t used = 0;
  int64_t pass = -1;
  Packed passing;

  // Where there is no memory for it, this throws.
  static const T* fill(Packed& to, const Matrix<T>& matrix) {
    to.memory.resize(Pieces<T>(matrix).elements() / Vectors<T>::SIZE);
    T* memory = reinterpret_cast<T*>(to.memory.data());
    pack(matrix, memory);
    to.matrix = matrix;
    return memory;
  }

 public:
  // A matrix that stays as it is in this pass.
  const T* of(const Matrix<T>& matrix, int64_t number) {
    if (number != pass) used = 0, pass = number;
    for (size_t k = 0; k < used; ++k)
      if (packed[k].matrix == matrix) return reinterpret_cast<const T*>(packed[k].memory.data());
    if (used == packed.size()) packed.emplace_back();
    const T* memory = fill(packed[used], matrix);
    ++used;  // only now: a matrix that there was no memory for is not found again
    return memory;
  }

  // One that does not.
  const T* of(const Matrix<T>& matrix) { return fill(passing, matrix); }

  // The pass is over: little memory is kept for the next one.
  void trim() {
    size_t kept = passing.memory.size();
    for (const Packed& one : packed) kept += one.memory.size();
    if (kept <= MOST_KEPT) return;
    packed.clear();
    passing.memory = {};
    used = 0;
    pass = -1;
  }
};

template <typename T>
Packs<T>& packs() {
  thread_local Packs<T> found;
  return found;
}

}  // namespace
