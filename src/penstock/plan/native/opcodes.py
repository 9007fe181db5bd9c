"""The numbers that assembled programs are made of, and how frames and records are laid out.

An instruction is eight integers: its name, where its result goes, and operands. Registers hold one
integer for each row of a batch; the registers of constants hold one for all rows.
"""

from __future__ import annotations

#: Integers in an instruction.
WIDTH = 8

#: The head of a row's frame; its values, children and counters follow.
CONTEXT, PARENT, SITE, INSTANCE, UNDONE, DEPTH, COUNT, HEAD = range(8)

# What instructions do. `rows` is a register of rows, which is also the count of the others.
(
    END,
    #: (rows, where): go there if there are no rows.
    SKIP_EMPTY,
    #: dst (rows, offset): a cell of each row's frame.
    COLUMN,
    #: dst (rows, start): what each row's instance has there.
    INPUT,
    #: dst (rows, operation, a, b, c): arithmetic.
    HOST,
    #: dst (rows, table, index): an element of each row's table.
    READ_TABLE,
    #: dst (rows, table): its length.
    TABLE_LENGTH,
    #: dst... (rows, index, arms, is_cond): the rows of each arm, in as many registers.
    SPLIT,
    #: (rows, offset, values): keep values in the frames.
    STORE,
    #: (rows, offset, values, place): the same, and count them.
    STORE_SLOT,
    #: (rows, node): let it fire for rows.
    ENQUEUE,
    #: (rows, offset, node, arrivals): so many less to wait for; rows with none left are queued.
    COUNT_DOWN,
    #: (rows, amount): more to wait for.
    WAIT,
    #: (rows, group, fields, count): values go to rows later.
    MOVE,
    #: dst (rows, site): positions of rows that were called there.
    AT_SITE,
    #: dst (positions, values): values of some positions.
    TAKE,
    #: (rows, output, values, place): results of instances.
    FINISH,
    #: dst (rows, sequences, index): the slots of elements.
    ELEMENT,
    #: dst (rows, sequences): their lengths.
    LENGTH,
    #: (rows): they have got an input that they were made to wait for.
    LOOSE,
    #: (rows): a node fires inside an event.
    FIRED,
    #: dst (rows, arrays, index): the slots of elements.
    ARRAY_READ,
    #: (rows, sequences, indices and offsets, count, arena): keep the slots of several elements in
    #: the frames, and count them.
    STORE_ELEMENTS,
    #: dst (rows, context, site, offset, how): new rows; rows remember them at the offset.
    CREATE,
    #: dst (rows, counter, bound): positions of rows, the largest difference first.
    LONGEST_FIRST,
    #: dst... (rows, specification, operands): a launch.
    LAUNCH,
    #: dst (rows, values, arena): host values get slots.
    UPLOAD,
    #: dst (rows, sizes, arena, can_grow): arrays with nothing written.
    ARRAY_NEW,
    #: dst (rows, arrays, index, slots, may_steal): versions with one element more.
    ARRAY_WRITE,
    #: dst (rows, arrays, arena): sequences of their elements.
    ARRAY_STACK,
    #: dst (rows, sequences, arena): arrays of their elements.
    ARRAY_UNSTACK,
    #: dst... (rows, operands, count, results, padded): launches that the host plans, unless all
    #: rows have padded copies side by side; see `host_launches`.
    ASK,
) = range(32)

#: From this one on, instructions may make arrays.
FIRST_TO_MAKE = CREATE

#: How CREATE makes rows: for a call, for the first iteration, for the next one.
CALLED, ENTERED, NEXT = range(3)

# Arithmetic of host values; booleans are 0 and 1.
(
    ADD,
    SUBTRACT,
    MULTIPLY,
    FLOOR_DIVIDE,
    REMAINDER,
    NEGATE,
    ABSOLUTE,
    COPY,
    EQUAL,
    NOT_EQUAL,
    LESS,
    LESS_EQUAL,
    AND,
    OR,
    XOR,
    INVERT,
    IS_TRUE,
    IS_FALSE,
    MINIMUM,
    MAXIMUM,
    CHOOSE,
) = range(21)

#: What an operand of a launch is: slots, the elements of sequences, host values.
SLOT_OPERAND, SEQUENCE_OPERAND, HOST_OPERAND = range(3)

#: The records that come out: a launch, a store, a copy, a launch of a padded form; and where their
#: values are.
LAUNCH_RECORD, STORE_RECORD, COPY_RECORD, PADDED_RECORD = range(4)
SPAN_VALUES, LISTED_VALUES = range(2)

#: What precedes the specification of a launch that may be padded: the number of the padded form
#: once that is known, the least length that it serves, and which operand is the sequence.
PADDED_FORM, LEAST_LENGTH, SEQUENCE, SPECIFICATION = range(4)

#: Words of a padded record before its operands: those of a launch, the padded form, the arena of
#: the copies, and which operand they are.
PADDED_HEAD = 7

#: How a run of the kernel ends: all is planned; a window is full; the plain machine must tell; the
#: host must plan launches of an event.
DONE, PAUSED, FAULT, ASKED = range(4)

#: How a run begins: with another event; with results of launches that the host has planned for some
#: rows of an event, or for the last of them, with which it ends.
AFRESH, WITH_MORE, WITH_LAST = range(3)

# Scalars of a machine's state.
(
    LIVE_ROWS,
    MOST_LIVE_ROWS,
    FIRINGS,
    FRAME_TOP,
    QUEUE_TOP,
    CONTROL_HEAD,
    CONTROL_COUNT,
    EXPANDING_COUNT,
    SEQUENCE_TOP,
    SEQUENCE_FREE,
    COUNTS_TOP,
    POOL_TOP,
    RECORDS,
    PERIOD,
    HEADS_TOP,
    DATA_TOP,
    CHUNKS_TOP,
    # the event that the host was asked about
    HOW,
    ASKED_AT,
    ASKED_NODE,
    ASKED_COUNT,
    MOVES_TOP,
    HELD_TOP,
    ARRIVED_TOP,
    # what results arrive, and where on the heap
    GIVEN_ROWS,
    HEAP_TOP,
    SCALARS,
) = range(27)

# What the kernel must know of the limits.
LIVE_LIMIT, LOOP_LIMIT, ADMITTED, MOST_ROWS, MOST_DEPTH, WINDOW, INSTANCES, LIMITS = range(8)

#: Columns of the table of nodes.
NODE_SEGMENT, NODE_CONTEXT, NODE_QUEUE, NODE_RANK, NODE_NUMBER, NODE_ENTERS = range(6)
NODE_COLUMNS = 6
CONTROL_QUEUE, EXPANDING_QUEUE, DATA_QUEUE = range(3)

#: Columns of the table of contexts.
(
    FRAME_SIZE,
    FIRST_UNDONE,
    SLOT_START,
    SLOT_COUNT,
    PENDING_START,
    PENDING_COUNT,
    WAITS_START,
    IS_LOOP,
    CONTEXT_COLUMNS,
) = range(9)

#: Columns of the state of arenas. The slots below GIVEN are inputs, which are held to the end:
#: references to them need not be counted, but must not be given up either.
TOP, STOP, REGION, FREE, TAKEN, LEFT_OUT, FIRST_CHUNK, GIVEN, ARENA_COLUMNS = range(9)

#: Where the counts of a value are: the slots of an arena, or all sequences and arrays.
IN_SEQUENCES = -2
NOT_COUNTED = -1

#: Registers below this one hold constants; this one holds the rows that an event is about.
ROWS_REGISTER = 64
