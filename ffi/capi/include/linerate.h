/*
 * linerate for C and C++: collectives of distributed training over shared memory, TCP and RDMA.
 *
 * Made of the sources by `LINERATE_ACCEPT=1 cargo test -p linerate-capi --test header`; do not
 * change it by hand.
 *
 * Status: every function returns an int32_t: LINERATE_DONE (0), LINERATE_IN_PROGRESS (1), or a
 * negative LINERATE_ERROR_... A result is written to an address only if the status is 0 or 1. After
 * an error, linerate_last_error_text() says what was tried and what to do.
 *
 * Handles: numbers of 64 bits. 0 is none; one that is 0, was freed, or names an object of another
 * kind is LINERATE_ERROR_BAD_HANDLE and never a crash. The functions that free accept 0.
 *
 * Structs begin with their size: clear the struct, then set `size` to its sizeof. Fields that are
 * zero have their defaults, and later versions add fields at the end.
 *
 * Threads: what a function says of threads holds for one communicator, operation or config; several
 * of them are used by several threads freely.
 *
 * Fork: handles belong to the process that made them. In a child, functions that communicate return
 * LINERATE_ERROR_FORKED, those that free end the child's handle only, and the parent goes on.
 *
 * Callbacks must return: a C++ exception or a longjmp out of one ends the process.
 *
 * Unloading is refused: dlclose() leaves the library where it is, because its threads may run.
 */

#ifndef LINERATE_H
#define LINERATE_H

#include <stdint.h>

/**
 * Major version of the binary interface, which is also in the name of the library. A program runs
 * with every library of its major version whose minor version is not lower. It is not the version
 * of the crate.
 */
#define LINERATE_ABI_MAJOR 0

/**
 * Minor version of the binary interface: it grows with each function, constant or field.
 */
#define LINERATE_ABI_MINOR 5

/**
 * A limit that does not end.
 */
#define LINERATE_FOREVER UINT64_MAX

/**
 * The color of a rank that takes part in linerate_split() and gets no communicator.
 */
#define LINERATE_NO_COLOR -1

/**
 * Memory of this process: the one kind that there is.
 */
#define LINERATE_MEMORY_HOST 0

/**
 * A round begins when half of the ranks (rounded up) have arrived.
 */
#define LINERATE_MAJORITY 0

/**
 * A round begins with the first rank that arrives.
 */
#define LINERATE_SOLO 1

/**
 * A round begins when `quorum` ranks have arrived.
 */
#define LINERATE_QUORUM 2

/**
 * A round is an ordinary allreduce.
 */
#define LINERATE_FULL 3

/**
 * A round begins when one rank has arrived, drawn anew for each round from `seed`.
 */
#define LINERATE_RANDOM_INITIATOR 4

/**
 * A round begins `deadline_ns` after the first arrival, or when all have arrived; later if fewer
 * than `quorum` have by then.
 */
#define LINERATE_DEADLINE 5

/**
 * Every round's result, in order: the weights are the same bits on all ranks.
 */
#define LINERATE_ORDERED 0

/**
 * The sum of all rounds since the last result: for plain SGD.
 */
#define LINERATE_MERGED 1

/**
 * The newest result only: the weights of the ranks drift apart.
 */
#define LINERATE_LATEST 2

/**
 * Sums are divided by the ranks that there were at first.
 */
#define LINERATE_BY_CREATION 0

/**
 * Sums are divided by the ranks that live.
 */
#define LINERATE_BY_LIVE 1

/**
 * Sums are divided by the gradients in them.
 */
#define LINERATE_BY_GENERATIONS 2

/**
 * Sums are not divided.
 */
#define LINERATE_BY_NOTHING 3

/**
 * No bound: a slow rank falls behind without limit.
 */
#define LINERATE_UNBOUNDED UINT32_MAX

/**
 * Exactly k entries in every step.
 */
#define LINERATE_EXACT 0

/**
 * Thresholds are found exactly once in `reuse_steps` steps and corrected in between.
 */
#define LINERATE_THRESHOLD 1

/**
 * As the published code does.
 */
#define LINERATE_PAPER 2

/**
 * A value that is not finite is LINERATE_ERROR_NOT_FINITE on all ranks, and changes nothing.
 */
#define LINERATE_NOT_FINITE_ERROR 0

/**
 * All ranks skip a step with a value that is not finite: for gradient scalers.
 */
#define LINERATE_NOT_FINITE_SKIP 1

/**
 * Values that are not finite are left out, and counted.
 */
#define LINERATE_NOT_FINITE_COUNT 2

/**
 * Regions have equal shares of all ranks' picks.
 */
#define LINERATE_REGIONS_BALANCED 0

/**
 * Regions are the average of every rank's own equal shares, as in the paper.
 */
#define LINERATE_REGIONS_AVERAGED 1

/**
 * Regions have equal shares of the coordinates.
 */
#define LINERATE_REGIONS_EQUAL 2

/**
 * Entries are spread evenly where one rank has above min(4, 3p/4) times the mean of p ranks.
 */
#define LINERATE_BALANCE_AUTO 0

/**
 * Entries are spread evenly where one rank has above 4 times the mean.
 */
#define LINERATE_BALANCE_PAPER 1

/**
 * Entries are spread evenly where the cost model says that it is faster.
 */
#define LINERATE_BALANCE_COST 2

/**
 * Entries are always spread evenly.
 */
#define LINERATE_BALANCE_ALWAYS 3

/**
 * Entries are never spread.
 */
#define LINERATE_BALANCE_NEVER 4

/**
 * It is done.
 */
#define LINERATE_DONE 0

/**
 * It has not ended: no error.
 */
#define LINERATE_IN_PROGRESS 1

/**
 * An argument does not exist or does not fit.
 */
#define LINERATE_ERROR_INVALID_ARGUMENT -1

/**
 * Nothing moved for the whole timeout. The ranks of the error are those that are missing.
 */
#define LINERATE_ERROR_TIMEOUT -2

/**
 * Two ranks called different operations at one place of their programs.
 */
#define LINERATE_ERROR_MISMATCH -3

/**
 * A peer or its link died.
 */
#define LINERATE_ERROR_PEER_FAILED -4

/**
 * A peer has left in good order, and the operation needs it.
 */
#define LINERATE_ERROR_LEFT -5

/**
 * The operation was cancelled.
 */
#define LINERATE_ERROR_CANCELLED -6

/**
 * A rank aborted the communicator.
 */
#define LINERATE_ERROR_ABORTED -7

/**
 * The communicator failed earlier; linerate_last_error_cause() has the status of the first cause.
 */
#define LINERATE_ERROR_COMMUNICATOR_FAILED -8

/**
 * The communicator belongs to the process that forked this one.
 */
#define LINERATE_ERROR_FORKED -9

/**
 * Another operation uses the memory.
 */
#define LINERATE_ERROR_IN_USE -10

/**
 * Memory, descriptors, handles or another bounded resource is used up.
 */
#define LINERATE_ERROR_EXHAUSTED -11

/**
 * A transport cannot be used on this machine.
 */
#define LINERATE_ERROR_UNAVAILABLE -12

/**
 * The ranks could not find each other.
 */
#define LINERATE_ERROR_BOOTSTRAP -13

/**
 * The operating system refused a call.
 */
#define LINERATE_ERROR_OS -14

/**
 * Values of a sparse allreduce are not finite.
 */
#define LINERATE_ERROR_NOT_FINITE -15

/**
 * Bytes of a peer or a file do not have the right form.
 */
#define LINERATE_ERROR_MALFORMED -16

/**
 * A defect of the library, found by a check.
 */
#define LINERATE_ERROR_INTERNAL -17

/**
 * A receive with a tag was cancelled before it met a message; nothing else has failed.
 */
#define LINERATE_ERROR_RECEIVE_CANCELLED -19

/**
 * An error that has no number of its own in this version of the interface.
 */
#define LINERATE_ERROR_OTHER -18

/**
 * A defect of the library: its code panicked. The process goes on; destroy what the call named.
 */
#define LINERATE_ERROR_PANIC -64

/**
 * A handle is 0, was freed, was never made, or names an object of another kind.
 */
#define LINERATE_ERROR_BAD_HANDLE -65

/**
 * Every rank: a receive from it takes the message that comes first. As a source: not known.
 */
#define LINERATE_ANY_RANK UINT32_MAX

/**
 * Communication adds less than 1 % to a step.
 */
#define LINERATE_LIMITED_BY_COMPUTATION 0

/**
 * Bytes on the links between GPUs or servers.
 */
#define LINERATE_LIMITED_BY_WIRE 1

/**
 * Bytes on the links inside of servers.
 */
#define LINERATE_LIMITED_BY_INSIDE 2

/**
 * Latencies of messages.
 */
#define LINERATE_LIMITED_BY_LATENCY 3

/**
 * Additions.
 */
#define LINERATE_LIMITED_BY_ADDITIONS 4

/**
 * Packing and compressing gradients.
 */
#define LINERATE_LIMITED_BY_PACKING 5

/**
 * What each allreduce takes besides, and the wait for a cycle.
 */
#define LINERATE_LIMITED_BY_OPERATIONS 6

/**
 * The computation, which communication slows.
 */
#define LINERATE_LIMITED_BY_SLOWING 7

/**
 * GPUs that compute longer than others.
 */
#define LINERATE_LIMITED_BY_STRAGGLERS 8

/**
 * The reduction of all inputs, on every rank.
 */
#define LINERATE_ALL_REDUCE 1

/**
 * Rank r gets the reduction of block r.
 */
#define LINERATE_REDUCE_SCATTER 2

/**
 * Block r of every output is rank r's input.
 */
#define LINERATE_ALL_GATHER 3

/**
 * As LINERATE_ALL_GATHER, with a length per rank.
 */
#define LINERATE_ALL_GATHER_V 4

/**
 * The root's elements, on all ranks.
 */
#define LINERATE_BROADCAST 5

/**
 * The reduction of all inputs, on the root.
 */
#define LINERATE_REDUCE 6

/**
 * Block r of the root's output is rank r's input.
 */
#define LINERATE_GATHER 7

/**
 * Rank r gets block r of the root's input.
 */
#define LINERATE_SCATTER 8

/**
 * Block r goes to rank r.
 */
#define LINERATE_ALL_TO_ALL 9

/**
 * As LINERATE_ALL_TO_ALL, with a length per pair. Never in place.
 */
#define LINERATE_ALL_TO_ALL_V 10

/**
 * No rank leaves before all have come.
 */
#define LINERATE_BARRIER 11

/**
 * As LINERATE_GATHER, with a length per rank.
 */
#define LINERATE_GATHER_V 13

/**
 * As LINERATE_SCATTER, with a length per rank.
 */
#define LINERATE_SCATTER_V 14

/**
 * As LINERATE_REDUCE_SCATTER, with a length per rank.
 */
#define LINERATE_REDUCE_SCATTER_V 15

/**
 * double
 */
#define LINERATE_F64 1

/**
 * float
 */
#define LINERATE_F32 2

/**
 * IEEE binary16; accumulated in f32.
 */
#define LINERATE_F16 3

/**
 * bfloat16; accumulated in f32.
 */
#define LINERATE_BF16 4

/**
 * int8_t
 */
#define LINERATE_I8 5

/**
 * uint8_t
 */
#define LINERATE_U8 6

/**
 * int32_t
 */
#define LINERATE_I32 7

/**
 * uint32_t
 */
#define LINERATE_U32 8

/**
 * int64_t
 */
#define LINERATE_I64 9

/**
 * uint64_t
 */
#define LINERATE_U64 10

/**
 * A truth value in one byte.
 */
#define LINERATE_BOOL 11

/**
 * int16_t
 */
#define LINERATE_I16 12

/**
 * uint16_t
 */
#define LINERATE_U16 13

/**
 * float8_e4m3fn of OCP and torch; accumulated in f32.
 */
#define LINERATE_F8E4M3 14

/**
 * float8_e5m2; accumulated in f32.
 */
#define LINERATE_F8E5M2 15

/**
 * Two floats, the real part first.
 */
#define LINERATE_C64 16

/**
 * Two doubles, the real part first.
 */
#define LINERATE_C128 17

/**
 * Of truth values: or. Every type has it.
 */
#define LINERATE_SUM 0

/**
 * Of truth values: and. Not of complex numbers.
 */
#define LINERATE_PROD 1

/**
 * Of truth values: and. Not of complex numbers.
 */
#define LINERATE_MIN 2

/**
 * Of truth values: or. Not of complex numbers.
 */
#define LINERATE_MAX 3

/**
 * The sum, divided by the ranks once at the end. Not of truth values.
 */
#define LINERATE_AVG 4

/**
 * The sum of what each rank multiplies by its `factor`. Floats and complex numbers.
 */
#define LINERATE_PREMUL_SUM 5

/**
 * Integers and truth values.
 */
#define LINERATE_BIT_AND 6

/**
 * Integers and truth values.
 */
#define LINERATE_BIT_OR 7

/**
 * Integers and truth values.
 */
#define LINERATE_BIT_XOR 8

/**
 * A handle of a communicator.
 */
typedef uint64_t linerate_comm;

/**
 * A handle of a completion queue.
 */
typedef uint64_t linerate_queue;

/**
 * One collective. Zero everywhere but `size`, `collective`, `dtype`, `count` and the addresses is
 * the default. Buffers have NCCL's layout: what is in place there is in place here, told by the
 * addresses. With p ranks:
 *
 * | collective | input | output |
 * |---|---|---|
 * | ALL_REDUCE | count | count |
 * | REDUCE_SCATTER | p * count | count |
 * | ALL_GATHER | count | p * count |
 * | ALL_GATHER_V | own entry of receive_counts | sum of receive_counts |
 * | BROADCAST | count at the root | count |
 * | REDUCE | count | count at the root |
 * | GATHER | count | p * count at the root |
 * | SCATTER | p * count at the root | count |
 * | GATHER_V | own entry of receive_counts | sum of receive_counts at the root |
 * | SCATTER_V | sum of receive_counts at the root | own entry of receive_counts |
 * | REDUCE_SCATTER_V | sum of receive_counts | own entry of receive_counts |
 * | ALL_TO_ALL | p * count | p * count |
 * | ALL_TO_ALL_V | sum of send_counts | sum of receive_counts |
 * | BARRIER | none | none |
 *
 * A buffer that this rank does not have may be NULL. Buffers are aligned for their type. Memory of
 * linerate_alloc() is used where it lies; other memory is copied where a transport cannot read it.
 */
typedef struct linerate_call {
  /**
   * sizeof(linerate_call).
   */
  uint64_t size;
  /**
   * LINERATE_ALL_REDUCE, ...
   */
  uint32_t collective;
  /**
   * LINERATE_F32, ...
   */
  uint32_t dtype;
  /**
   * LINERATE_SUM, ...; of reducing collectives.
   */
  uint32_t op;
  /**
   * The rank that is special, of rooted collectives.
   */
  uint32_t root;
  /**
   * LINERATE_MEMORY_HOST.
   */
  uint32_t memory_kind;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * The factor of this rank, of LINERATE_PREMUL_SUM.
   */
  double factor;
  /**
   * Elements per rank.
   */
  uint64_t count;
  /**
   * Only read.
   */
  const void *input;
  /**
   * Written.
   */
  void *output;
  /**
   * One number per rank, of ALL_TO_ALL_V.
   */
  const uint64_t *send_counts;
  /**
   * One number per rank, of the collectives whose name ends with V.
   */
  const uint64_t *receive_counts;
  /**
   * How long it may make no progress, in nanoseconds; 0: as long as the communicator says.
   */
  uint64_t timeout_ns;
  /**
   * Algorithm by name (`linerate explain` lists them), the same on all ranks; NULL: the cost
   * model chooses.
   */
  const char *algorithm;
  /**
   * The queue that is told the end, of linerate_start(); 0: none.
   */
  linerate_queue queue;
  /**
   * The number of its completion in the queue.
   */
  uint64_t user;
  /**
   * The input as a list, in place of `input`: one address per rank, of what goes to that rank or
   * is reduced for it, as long as `send_counts` (of ALL_TO_ALL_V) or `receive_counts` says. Of
   * ALL_TO_ALL_V, REDUCE_SCATTER_V and the root of SCATTER_V. Nothing is copied together. NULL:
   * no list; other ranks may have one.
   */
  const void *const *inputs;
  /**
   * The output as a list, in place of `output`: one address per rank, of what comes from it, as
   * long as `receive_counts` says. Of ALL_TO_ALL_V, ALL_GATHER_V and the root of GATHER_V.
   */
  void *const *outputs;
} linerate_call;

/**
 * A handle of an operation that was started.
 */
typedef uint64_t linerate_operation;

/**
 * One send or receive of a group.
 */
typedef struct linerate_transfer {
  /**
   * sizeof(linerate_transfer).
   */
  uint64_t size;
  /**
   * The other rank.
   */
  uint32_t peer;
  /**
   * Not 0: a send; 0: a receive.
   */
  uint32_t is_send;
  /**
   * LINERATE_F32, ...
   */
  uint32_t dtype;
  /**
   * LINERATE_MEMORY_HOST.
   */
  uint32_t memory_kind;
  /**
   * Elements: equal on both sides.
   */
  uint64_t count;
  /**
   * Where they are; only read by a send.
   */
  void *address;
} linerate_transfer;

/**
 * A handle of settings.
 */
typedef uint64_t linerate_config;

/**
 * How processes that know each other exchange small values by key: keys have at most 250 bytes,
 * values at most 8192. The callbacks run on the thread that calls the function that is given the
 * struct, before it returns, and never two at once for one call. They must not end by longjmp or
 * by a C++ exception, which ends the process, and must not call functions of this header.
 */
typedef struct linerate_exchange {
  /**
   * sizeof(linerate_exchange).
   */
  uint64_t size;
  /**
   * Stores the value of a key for all ranks, instead of one that is there, within `limit_ns`
   * nanoseconds. Returns 0, or any other number as an error that the ranks are told.
   */
  int32_t (*put)(void *user, const char *key, const void *value, uint64_t bytes, uint64_t limit_ns);
  /**
   * The latest value of a key: writes it to `value`, which has `capacity` bytes, and its length
   * to `bytes`, and returns 0. Waits until there is one, at most `limit_ns` nanoseconds, and
   * returns 1 if there is none then. Any other number is an error that the ranks are told.
   */
  int32_t (*get)(void *user,
                 const char *key,
                 void *value,
                 uint64_t capacity,
                 uint64_t *bytes,
                 uint64_t limit_ns);
  /**
   * Given to both.
   */
  void *user;
} linerate_exchange;

/**
 * A tensor, declared once for all steps.
 */
typedef struct linerate_tensor {
  /**
   * sizeof(linerate_tensor).
   */
  uint64_t size;
  /**
   * Its name, for errors and saved residuals; NULL: "tensor" and its number.
   */
  const char *name;
  /**
   * Elements; 0 is allowed.
   */
  uint64_t count;
  /**
   * LINERATE_F32, ...
   */
  uint32_t dtype;
  /**
   * 0.
   */
  uint32_t reserved;
} linerate_tensor;

/**
 * When the tensors of a fusion buffer are reduced. Zero everywhere but `size` is the default. All
 * ranks give the same values.
 */
typedef struct linerate_fusion_options {
  /**
   * sizeof(linerate_fusion_options).
   */
  uint64_t size;
  /**
   * Bytes of one flush, up to 2^40; 0: 64 MiB. A flush happens as soon as this much of one type
   * is ready on all ranks. A larger tensor goes alone and is reduced where it lies.
   */
  uint64_t bytes_max;
  /**
   * How long a ready tensor waits for others, in nanoseconds, up to an hour; 0: 5 ms.
   */
  uint64_t age_max_ns;
  /**
   * Tensors of one flush; 0: no limit; 1: none are fused.
   */
  uint64_t tensors_max;
  /**
   * Flushes under way at once, up to 8; 0: 3. Each has a registered buffer of at most
   * `bytes_max`.
   */
  uint32_t buffers_count;
  /**
   * LINERATE_SUM, ...
   */
  uint32_t op;
  /**
   * The factor of this rank, of LINERATE_PREMUL_SUM.
   */
  double factor;
  /**
   * A plan in place of rounds in which the ranks agree: for each tensor the number of its flush,
   * from 0 on. Flushes start in this order, each when its tensors are ready; the first three
   * limits have no effect then. NULL: no plan.
   */
  const uint32_t *plan;
} linerate_fusion_options;

/**
 * A handle of a fusion buffer.
 */
typedef uint64_t linerate_fusion;

/**
 * What a fusion buffer did in a step. Times are nanoseconds since it was made, by this rank's
 * clock.
 */
typedef struct linerate_step_report {
  /**
   * sizeof(linerate_step_report), set by the caller.
   */
  uint64_t size;
  /**
   * The number of the step, from 0 on.
   */
  uint64_t step;
  /**
   * Flushes, equal on all ranks; linerate_fusion_flush() tells of each.
   */
  uint64_t flushes_count;
  /**
   * Rounds in which the ranks agreed; 0 with a plan.
   */
  uint64_t rounds_count;
  /**
   * Bytes that were reduced.
   */
  uint64_t bytes;
  /**
   * When the first tensor was announced.
   */
  uint64_t begin_ns;
  /**
   * When the backward pass ended.
   */
  uint64_t backward_end_ns;
  /**
   * When all tensors were reduced.
   */
  uint64_t done_ns;
  /**
   * How long at least one flush was under way.
   */
  uint64_t communication_ns;
  /**
   * The share of that time that the backward pass has hidden, 0 to 1.
   */
  double overlap;
} linerate_step_report;

/**
 * One flush of a step: several tensors that were reduced together.
 */
typedef struct linerate_flush_report {
  /**
   * sizeof(linerate_flush_report), set by the caller.
   */
  uint64_t size;
  /**
   * Bytes of all its tensors.
   */
  uint64_t bytes;
  /**
   * When the last of them was announced.
   */
  uint64_t ready_ns;
  /**
   * When its allreduce was started.
   */
  uint64_t start_ns;
  /**
   * When its allreduce had ended.
   */
  uint64_t end_ns;
  /**
   * How many tensors it had.
   */
  uint64_t tensors_count;
  /**
   * The type of its elements.
   */
  uint32_t dtype;
  /**
   * 0.
   */
  uint32_t reserved;
} linerate_flush_report;

/**
 * A handle of registered memory.
 */
typedef uint64_t linerate_memory;

/**
 * How a partial allreduce works. Zero everywhere but `size` is the default. All ranks give the
 * same values.
 */
typedef struct linerate_partial_options {
  /**
   * sizeof(linerate_partial_options).
   */
  uint64_t size;
  /**
   * When rounds begin: LINERATE_MAJORITY, ...
   */
  uint32_t policy;
  /**
   * Ranks, of LINERATE_QUORUM and LINERATE_DEADLINE; 0: 1.
   */
  uint32_t quorum;
  /**
   * Of LINERATE_DEADLINE, by the clock of one rank.
   */
  uint64_t deadline_ns;
  /**
   * Of LINERATE_RANDOM_INITIATOR.
   */
  uint64_t seed;
  /**
   * N: every (N+1)-th round waits for all; 0: none does.
   */
  uint32_t limiter;
  /**
   * How many rounds after its own a gradient is included at the latest, 1 to 1024; 0: 8;
   * LINERATE_UNBOUNDED: without limit, not with LINERATE_ORDERED. LINERATE_FULL never includes
   * one late.
   */
  uint32_t staleness_max;
  /**
   * Rounds that a rank may be ahead of its last result, 1 to 4; 0: 1.
   */
  uint32_t rounds_in_flight;
  /**
   * What a slow rank gets: LINERATE_ORDERED, ...
   */
  uint32_t delivery;
  /**
   * LINERATE_BY_CREATION, ...
   */
  uint32_t divisor;
  /**
   * Not 0: ranks that live go on after a death; 0: they have its error.
   */
  uint32_t survive;
} linerate_partial_options;

/**
 * A handle of a partial allreduce.
 */
typedef uint64_t linerate_partial;

/**
 * What a round was, the same on all ranks. Sets of ranks are written to where the caller says, as
 * bits: rank r is bit r % 64 of word r / 64, and a set has (ranks + 63) / 64 words. NULL: not
 * wanted.
 */
typedef struct linerate_round_report {
  /**
   * sizeof(linerate_round_report), set by the caller.
   */
  uint64_t size;
  /**
   * Set by the caller: where the ranks go whose gradient of this round was there in time.
   */
  uint64_t *active;
  /**
   * Set by the caller: where those go that contributed anything, late gradients included.
   */
  uint64_t *included;
  /**
   * Set by the caller: where those go for which the round waited because of `staleness_max`.
   */
  uint64_t *held;
  /**
   * Set by the caller: where those go that had died.
   */
  uint64_t *dead;
  /**
   * Set by the caller: where it goes how many gradients the sum has of this round, of the one
   * before, and so on.
   */
  uint64_t *staleness;
  /**
   * Set by the caller: how many numbers `staleness` has room for.
   */
  uint64_t staleness_capacity;
  /**
   * How many numbers there are for `staleness`.
   */
  uint64_t staleness_count;
  /**
   * Its number, from 0 on; of the newest round if there are several in the result.
   */
  uint64_t round;
  /**
   * Rounds in this result, or skipped by it; 1 with LINERATE_ORDERED.
   */
  uint64_t rounds;
  /**
   * Gradients in the sum.
   */
  uint64_t generations;
  /**
   * What the sum was divided by; 1 if by nothing.
   */
  uint64_t divisor;
  /**
   * How many ranks are in `active`.
   */
  uint32_t active_count;
  /**
   * How many ranks are in `included`.
   */
  uint32_t included_count;
  /**
   * How many ranks are in `held`.
   */
  uint32_t held_count;
  /**
   * How many ranks are in `dead`.
   */
  uint32_t dead_count;
  /**
   * 1: it waited for all ranks, as every round with LINERATE_FULL does; else 0.
   */
  uint32_t is_full;
  /**
   * 1: it was the round of linerate_partial_finish(); else 0.
   */
  uint32_t is_last;
} linerate_round_report;

/**
 * Called with each result of linerate_partial_finish(), which lies in `update` during the call.
 */
typedef void (*linerate_visit)(void *user, const struct linerate_round_report *report);

/**
 * An operation that has ended.
 */
typedef struct linerate_completion {
  /**
   * sizeof(linerate_completion).
   */
  uint64_t size;
  /**
   * The number that the operation was started with.
   */
  uint64_t user;
  /**
   * What waiting for it would have returned.
   */
  int32_t status;
  /**
   * Of a receive with a tag: the rank whose message it has met; else LINERATE_ANY_RANK.
   */
  uint32_t source;
} linerate_completion;

/**
 * How a sparse allreduce works. Zero everywhere but `size` is the default. All ranks give the same
 * values.
 */
typedef struct linerate_sparse_options {
  /**
   * sizeof(linerate_sparse_options).
   */
  uint64_t size;
  /**
   * "oktopk" (NULL: this), "topka", "topka2", "topkdsa", "topkdsa-small", "topkdsa-big",
   * "topkdsa-doubling", "gtopk", "gaussiank", "dense", or "auto" (by the cost model and the
   * steps before).
   */
  const char *algorithm;
  /**
   * The share of all coordinates that a step selects, above 0 and at most 1; 0: `k`, or 1 % if
   * that is 0, too.
   */
  double density;
  /**
   * How many entries a step selects, if `density` is 0.
   */
  uint64_t k;
  /**
   * Steps between two exact thresholds; 0: 32.
   */
  uint64_t reuse_steps;
  /**
   * Steps between two cuts of the regions; 0: 64.
   */
  uint64_t repartition_steps;
  /**
   * First steps that are dense; their residuals stay zero.
   */
  uint64_t warm_up_steps;
  /**
   * LINERATE_EXACT, ...
   */
  uint32_t mode;
  /**
   * LINERATE_NOT_FINITE_ERROR, ...
   */
  uint32_t not_finite;
  /**
   * LINERATE_REGIONS_BALANCED, ...
   */
  uint32_t regions;
  /**
   * LINERATE_BALANCE_AUTO, ...
   */
  uint32_t balance;
  /**
   * What values are on the wire: LINERATE_F32 (0: this), LINERATE_BF16 or LINERATE_I8 (with
   * scales). The residuals keep what the rounding takes.
   */
  uint32_t values;
  /**
   * What indices are on the wire: LINERATE_U32, LINERATE_U64; 0: what suffices.
   */
  uint32_t indices;
  /**
   * Not 0: the density or k is of each tensor, and not of all together.
   */
  uint32_t is_per_tensor;
  /**
   * Not 0: the result is divided by the number of ranks.
   */
  uint32_t is_average;
  /**
   * Not 0: TopkDSA sends values without indices from half of the coordinates on, as SparCML; 0:
   * from a third on.
   */
  uint32_t is_sparcml;
  /**
   * 0.
   */
  uint32_t reserved;
} linerate_sparse_options;

/**
 * A handle of a sparse allreduce.
 */
typedef uint64_t linerate_sparse;

/**
 * What a step of a sparse allreduce did. A word is 4 bytes.
 */
typedef struct linerate_sparse_report {
  /**
   * sizeof(linerate_sparse_report), set by the caller.
   */
  uint64_t size;
  /**
   * The algorithm that ran, by the name that options give it. The text is constant.
   */
  const char *algorithm;
  /**
   * Steps until now, without those that were skipped.
   */
  uint64_t steps;
  /**
   * The entries that a step is to select.
   */
  uint64_t k;
  /**
   * Entries that this rank selected.
   */
  uint64_t selected_local;
  /**
   * Entries of the result.
   */
  uint64_t selected_global;
  /**
   * Non-zeros of the sum of all that was selected; UINT64_MAX: not counted.
   */
  uint64_t reduced;
  /**
   * Values that are not finite, of all ranks.
   */
  uint64_t not_finite;
  /**
   * Time of selecting.
   */
  uint64_t select_ns;
  /**
   * Time of communicating, with the wait for other ranks.
   */
  uint64_t communicate_ns;
  /**
   * Time of changing residuals and making the result.
   */
  uint64_t apply_ns;
  /**
   * Messages sent by this rank.
   */
  uint64_t messages;
  /**
   * Bytes sent.
   */
  uint64_t bytes_sent;
  /**
   * Bytes of entries received.
   */
  uint64_t bytes_received;
  /**
   * Words of entries sent.
   */
  uint64_t data_words_sent;
  /**
   * Words of entries received.
   */
  uint64_t data_words_received;
  /**
   * Words of counts, sizes and boundaries sent.
   */
  uint64_t control_words;
  /**
   * 1: the step was skipped because of a value that is not finite; else 0.
   */
  uint32_t is_skipped;
  /**
   * 1: some of the result is dense; else 0.
   */
  uint32_t is_dense;
} linerate_sparse_report;

/**
 * A send or a receive with a tag, like those of MPI: a receive takes a message only if their tags
 * are equal. Zero everywhere but `size`, `dtype`, `count` and `address` is the default.
 */
typedef struct linerate_message {
  /**
   * sizeof(linerate_message).
   */
  uint64_t size;
  /**
   * The memory, aligned for its type. NULL with a count of 0.
   */
  void *address;
  /**
   * Elements, as many on both sides.
   */
  uint64_t count;
  /**
   * LINERATE_F32, ...
   */
  uint32_t dtype;
  /**
   * LINERATE_MEMORY_HOST.
   */
  uint32_t memory_kind;
  /**
   * The rank at the other end; of a receive also LINERATE_ANY_RANK.
   */
  uint32_t peer;
  /**
   * The tag.
   */
  uint32_t tag;
  /**
   * 0: a receive; 1: a send.
   */
  uint32_t is_send;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * How long it may make no progress, nanoseconds; 0: as long as the communicator says.
   */
  uint64_t timeout_ns;
  /**
   * A queue that is told of its end, or 0.
   */
  linerate_queue queue;
  /**
   * What the queue tells then.
   */
  uint64_t user;
} linerate_message;

/**
 * One gradient of a backward pass.
 */
typedef struct linerate_gradient {
  /**
   * sizeof(linerate_gradient).
   */
  uint64_t size;
  /**
   * Microseconds since the gradient before was ready; of the first since the backward pass
   * began.
   */
  double wait_us;
  /**
   * Its bytes, a whole number of elements.
   */
  uint64_t bytes;
  /**
   * LINERATE_F32, ...
   */
  uint32_t dtype;
  /**
   * 0.
   */
  uint32_t reserved;
} linerate_gradient;

/**
 * What a trace says of a step. Zero is not known.
 */
typedef struct linerate_step {
  /**
   * sizeof(linerate_step).
   */
  uint64_t size;
  /**
   * Milliseconds of a step without communication; 0: 1.5 times the backward pass.
   */
  double step_ms;
  /**
   * Milliseconds of its forward pass; 0: what the backward pass leaves of a step.
   */
  double forward_ms;
  /**
   * Standard deviation of the times of the steps, as a share of their mean.
   */
  double spread;
  /**
   * Steps of which the gradients are means; 0: one.
   */
  uint64_t steps;
} linerate_step;

/**
 * GPUs, their network, and how gradients are put together. Zero everywhere but `size` and `gpus`
 * is the published model (Zhang et al., NetAI 2020) at 100 Gbit/s.
 */
typedef struct linerate_whatif {
  /**
   * sizeof(linerate_whatif).
   */
  uint64_t size;
  /**
   * GPUs that train together, from 1.
   */
  uint32_t gpus;
  /**
   * GPUs that share a link; 0: each has one of its own.
   */
  uint32_t gpus_per_server;
  /**
   * Gbit/s of a link; 0: 100; infinity: it takes no time.
   */
  double gbit;
  /**
   * Gbit/s of a GPU's link inside of its server; 0: it takes no time.
   */
  double inside_gbit;
  /**
   * Microseconds from sending to receiving a message.
   */
  double latency_us;
  /**
   * By how much gradients are shorter on the link; 0: 1, which is not at all.
   */
  double compression;
  /**
   * Share of the link that the transport reaches; 0: 1, which is all of it.
   */
  double link_share;
  /**
   * Microseconds that each allreduce takes besides its bytes.
   */
  double operation_us;
  /**
   * Microseconds between two looks at what is ready.
   */
  double cycle_us;
  /**
   * By how much communication slows computation while both run.
   */
  double slowing;
  /**
   * Standard deviation of the time that a GPU computes for a step, as a share of that time.
   */
  double spread;
  /**
   * Gbit/s at which a GPU packs and compresses gradients; 0: it takes no time.
   */
  double packing_gbit;
  /**
   * GB/s at which a GPU adds a vector to another; 0: as measured on one V100; infinity: it takes
   * no time.
   */
  double adding_gbytes;
  /**
   * What measured steps took divided by what was predicted of them, the least and the most; 0:
   * 1, which is that no error is known.
   */
  double error_least;
  /**
   * See `error_least`.
   */
  double error_most;
  /**
   * "ring", "auto", "tree", "hierarchical", "oktopk:0.01", "partial:0.5", "ps:4", "switchml",
   * "bytescheduler", ...; NULL: "ring".
   */
  const char *algorithm;
  /**
   * Bytes of one flush; 0: 64 MiB.
   */
  uint64_t fusion_bytes_max;
  /**
   * How long a ready gradient waits for others, in nanoseconds; 0: 5 ms.
   */
  uint64_t fusion_age_max_ns;
  /**
   * The type as which elements are sent and added, LINERATE_BF16, ...; 0: their own.
   */
  uint32_t wire_dtype;
  /**
   * 1: flushes are those of a fusion buffer of linerate; 0: those of the published simulation.
   */
  uint32_t is_fused_as_linerate;
  /**
   * 1: additions are of compressed gradients, too.
   */
  uint32_t adds_compressed;
  /**
   * 0.
   */
  uint32_t reserved;
} linerate_whatif;

/**
 * A predicted step of training. Times are milliseconds.
 */
typedef struct linerate_prediction {
  /**
   * sizeof(linerate_prediction), set by the caller.
   */
  uint64_t size;
  /**
   * A step on one GPU.
   */
  double batch_ms;
  /**
   * The backward pass.
   */
  double backward_ms;
  /**
   * From the start of the backward pass until all gradients are reduced.
   */
  double sync_ms;
  /**
   * What communication and waiting for slower GPUs add to a step.
   */
  double overhead_ms;
  /**
   * The time of a step on one GPU, divided by that on all of them.
   */
  double scaling_factor;
  /**
   * The least factor that is likely.
   */
  double low;
  /**
   * The largest one.
   */
  double high;
  /**
   * Share of the step in which a link is busy.
   */
  double link_utilisation;
  /**
   * Operations of a step.
   */
  uint64_t flushes_count;
  /**
   * LINERATE_LIMITED_BY_WIRE, ...
   */
  uint32_t limited_by;
  /**
   * 0.
   */
  uint32_t reserved;
} linerate_prediction;

/**
 * A collective on a fabric of GPUs, in virtual time.
 */
typedef struct linerate_fabric_call {
  /**
   * sizeof(linerate_fabric_call).
   */
  uint64_t size;
  /**
   * "p3dn", "100g", "200g", "400g", "8x400g" or "oversubscribed"; or a fabric in JSON, such as
   * {"nic_gbit": 25, "gpus_per_host": 4}.
   */
  const char *fabric;
  /**
   * LINERATE_ALL_REDUCE, ..., of equal parts.
   */
  uint32_t collective;
  /**
   * Ranks, one for each GPU.
   */
  uint32_t ranks;
  /**
   * Bytes of the longest buffer of a rank: the vector, or the parts of all ranks.
   */
  uint64_t bytes;
  /**
   * Bytes of a chunk; 0: 256 KiB.
   */
  uint64_t chunk_bytes;
  /**
   * An algorithm; NULL: the one that linerate would choose.
   */
  const char *algorithm;
  /**
   * Root of rooted collectives.
   */
  uint32_t root;
  /**
   * 0.
   */
  uint32_t reserved;
} linerate_fabric_call;

/**
 * How long a collective takes on a fabric.
 */
typedef struct linerate_fabric_times {
  /**
   * sizeof(linerate_fabric_times), set by the caller.
   */
  uint64_t size;
  /**
   * Until the last rank has ended.
   */
  uint64_t ns;
  /**
   * Messages between ranks.
   */
  uint64_t messages;
  /**
   * Share of the time in which the NICs are busy, on average.
   */
  double nic_use;
} linerate_fabric_times;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the binary interface of the library that runs: 65536 * major + minor. Threads:
 * any. After fork: as before.
 */
uint32_t linerate_abi_version(void);

/**
 * Runs a collective and waits for its end. All ranks run and start the same ones in one order.
 *
 * Threads: any, one at a time for one communicator. The call and its buffers are the caller's
 * again when it returns; after an error, peers may still write registered memory. Returns the
 * first cause of a failure on every rank. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `call` is a struct whose addresses hold what its documentation says.
 */
int32_t linerate_run(linerate_comm comm, const struct linerate_call *call);

/**
 * Starts a collective and returns at once. With a queue in the call, `operation` may be NULL: the
 * queue tells the end then. A queue of a communicator that has nothing to do with this one is an
 * error, and the collective goes on all the same, as it does on the other ranks.
 *
 * Threads: any, one at a time for one communicator. The struct, its counts and texts are copied;
 * its buffers stay as they are until the operation has ended, also where its handle is freed.
 * After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * As linerate_run(); `operation` is writable, or NULL.
 */
int32_t linerate_start(linerate_comm comm,
                       const struct linerate_call *call,
                       linerate_operation *operation);

/**
 * Makes progress once: 0 if the operation has ended, LINERATE_IN_PROGRESS if not, or its error.
 *
 * Threads: one at a time for one operation. After fork: LINERATE_ERROR_FORKED.
 */
int32_t linerate_test(linerate_operation operation);

/**
 * Waits for the end of an operation, at most `limit_ns` nanoseconds (LINERATE_FOREVER: without a
 * limit; it fails on all ranks if it makes no progress for its timeout). 0 if it has ended,
 * LINERATE_IN_PROGRESS if not, or its error. Later calls return the same; free it then.
 *
 * Threads: one at a time for one operation. After fork: LINERATE_ERROR_FORKED.
 */
int32_t linerate_wait(linerate_operation operation, uint64_t limit_ns);

/**
 * Frees the handle of an operation; 0 is allowed and does nothing. An operation that has not ended
 * goes on, and its buffers stay the library's until it has.
 *
 * Threads: any. After fork: the child's handle ends, and the parent's operation goes on.
 */
int32_t linerate_free(linerate_operation operation);

/**
 * Runs sends and receives together and waits for their end, as the calls between ncclGroupStart
 * and ncclGroupEnd: they cannot deadlock, in whatever order they are given. The n-th send to a
 * rank meets that rank's n-th receive from this one. `timeout_ns` as in linerate_call.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * `transfers` are `count` structs whose memory holds what their documentation says.
 */
int32_t linerate_group_run(linerate_comm comm,
                           const struct linerate_transfer *transfers,
                           uint64_t count,
                           uint64_t timeout_ns);

/**
 * Starts sends and receives together, as linerate_group_run(), and returns at once. With a queue
 * that is not 0, `operation` may be NULL: the queue tells the end then, with the number `user`.
 *
 * Threads, owner and fork: as linerate_start().
 *
 * The caller's promise:
 * As linerate_group_run(); `operation` is writable, or NULL.
 */
int32_t linerate_group_start(linerate_comm comm,
                             const struct linerate_transfer *transfers,
                             uint64_t count,
                             uint64_t timeout_ns,
                             linerate_queue queue,
                             uint64_t user,
                             linerate_operation *operation);

/**
 * Runs several collectives together and waits for the end of all, as the calls between
 * ncclGroupStart and ncclGroupEnd. All ranks give the same ones in the same order. Short ones with
 * one type, operator and root travel together; this is fastest where their inputs, and their
 * outputs, lie one after another in memory of linerate_alloc(). `timeout_ns` is that of calls that
 * have none.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * `calls` are `count` structs whose addresses hold what their documentation says.
 */
int32_t linerate_batch_run(linerate_comm comm,
                           const struct linerate_call *calls,
                           uint64_t count,
                           uint64_t timeout_ns);

/**
 * Starts several collectives together, as linerate_batch_run(), and returns at once. They are one
 * operation, which ends when all have. With a queue that is not 0, `operation` may be NULL: the
 * queue tells the end then, with the number `user`. The calls name no queues.
 *
 * Threads, owner and fork: as linerate_start().
 *
 * The caller's promise:
 * As linerate_batch_run(); `operation` is writable, or NULL.
 */
int32_t linerate_batch_start(linerate_comm comm,
                             const struct linerate_call *calls,
                             uint64_t count,
                             uint64_t timeout_ns,
                             linerate_queue queue,
                             uint64_t user,
                             linerate_operation *operation);

/**
 * Joins the job that the environment describes, as `linerate launch`, torchrun, mpirun (Open MPI,
 * MPICH) and srun set it; one rank if none of them has started this process. `config` may be 0:
 * settings of the environment. Waits for the other ranks, at most the timeout of the settings.
 *
 * Threads: any. The caller ends the communicator by linerate_finalize() or linerate_destroy().
 * After fork: a child may join a job of its own.
 *
 * The caller's promise:
 * `made` is writable.
 */
int32_t linerate_init(linerate_config config, linerate_comm *made);

/**
 * Joins a job by name: every rank gives the same `job` and `ranks`, and a `rank` of its own from 0
 * on. Ranks of several hosts meet at "tcp://host:port" (a free port of rank 0's host) or in
 * "file://folder" (a folder that all ranks see); any other name is that of a job on this host.
 *
 * Threads, owner and fork: as linerate_init().
 *
 * The caller's promise:
 * `job` is a string; `made` is writable.
 */
int32_t linerate_init_by_name(uint32_t rank,
                              uint32_t ranks,
                              const char *job,
                              linerate_config config,
                              linerate_comm *made);

/**
 * Joins a job whose processes have a way between them already, such as torch's Store:
 * `exchange` puts and gets small values. `name` is 1 to 200 bytes that all ranks name alike and
 * no other use of the exchange has.
 *
 * Threads: any; the callbacks run on the calling thread, inside this call only. Owner and fork: as
 * linerate_init().
 *
 * The caller's promise:
 * `name` is a string; `exchange` is a struct whose callbacks keep what its documentation says;
 * `made` is writable.
 */
int32_t linerate_init_by_exchange(uint32_t rank,
                                  uint32_t ranks,
                                  const char *name,
                                  const struct linerate_exchange *exchange,
                                  linerate_config config,
                                  linerate_comm *made);

/**
 * The rank of this process in the communicator. Threads: any. After fork: as before.
 *
 * The caller's promise:
 * `rank` is writable.
 */
int32_t linerate_rank(linerate_comm comm, uint32_t *rank);

/**
 * How many ranks the communicator has. Threads: any. After fork: as before.
 *
 * The caller's promise:
 * `ranks` is writable.
 */
int32_t linerate_ranks(linerate_comm comm, uint32_t *ranks);

/**
 * The name of the transport in use, such as "shm" or "tcp", as linerate_last_error_text() gives
 * texts. Threads: any. After fork: as before.
 *
 * The caller's promise:
 * `buffer` has `capacity` bytes; `needed` is NULL or writable.
 */
int32_t linerate_transport(linerate_comm comm, char *buffer, uint64_t capacity, uint64_t *needed);

/**
 * Sets how long an operation may make no progress before the communicator fails on all ranks, in
 * nanoseconds above 0. It holds for operations under way, too. The default is LINERATE_TIMEOUT.
 *
 * Threads: any; each rank goes by its own value. After fork: LINERATE_ERROR_FORKED.
 */
int32_t linerate_set_timeout(linerate_comm comm, uint64_t timeout_ns);

/**
 * A communicator of the same ranks, with an order of operations of its own. Collective: every rank
 * calls it, in one order with its other collectives.
 *
 * Threads: any, one at a time for one communicator. The caller ends it as any other; both may be
 * used at the same time, and memory of one with the other. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `made` is writable.
 */
int32_t linerate_duplicate(linerate_comm comm, linerate_comm *made);

/**
 * Splits a communicator as MPI_Comm_split does: ranks of one `color` (0 to 2^32 - 1) form a new
 * one, ordered by `key`, then by rank. A rank with LINERATE_NO_COLOR takes part and gets the
 * handle 0. Collective, as linerate_duplicate(), with its threads, owner and fork.
 *
 * The caller's promise:
 * `made` is writable.
 */
int32_t linerate_split(linerate_comm comm, int64_t color, int32_t key, linerate_comm *made);

/**
 * A communicator of `count` ranks of another one, made by these alone: `members` are their numbers
 * there, in the order of the new ranks. They meet by `exchange` under `name`, as in
 * linerate_init_by_exchange(). The other communicator may have failed.
 *
 * Threads: any; the callbacks run on the calling thread, inside this call only. Owner and fork: as
 * linerate_duplicate(). `members` is not used after the call.
 *
 * The caller's promise:
 * `members` has `count` numbers; `name`, `exchange` and `made` as linerate_init_by_exchange().
 */
int32_t linerate_sibling(linerate_comm comm,
                         const uint32_t *members,
                         uint64_t count,
                         const char *name,
                         const struct linerate_exchange *exchange,
                         linerate_comm *made);

/**
 * After a failure: a new communicator of the ranks that live. Every one of them calls it. Allocate
 * memory anew for it. Threads, owner and fork: as linerate_duplicate().
 *
 * The caller's promise:
 * `made` is writable.
 */
int32_t linerate_rebuild(linerate_comm comm, linerate_comm *made);

/**
 * Fails the communicator on all ranks, with this reason: calls that wait on it return
 * LINERATE_ERROR_ABORTED, and later ones LINERATE_ERROR_COMMUNICATOR_FAILED.
 *
 * Threads: any, also while others wait. `reason` is copied. After fork: nothing happens.
 *
 * The caller's promise:
 * `reason` is a string.
 */
int32_t linerate_abort(linerate_comm comm, const char *reason);

/**
 * Whether the communicator has failed: 0, or the status of the first cause, which becomes the last
 * error of the calling thread, with its text and its ranks. Never waits.
 *
 * Threads: any. After fork: LINERATE_ERROR_FORKED.
 */
int32_t linerate_failure(linerate_comm comm);

/**
 * Ends a communicator collectively: returns when all ranks have called it, so that no rank leaves
 * while another one needs it. The handle ends in any case, also if a status says that a rank has
 * left or failed.
 *
 * Threads: any, while no other one uses the communicator. Memory, queues and operations made of it
 * have handles of their own, to be freed before or after. After fork: LINERATE_ERROR_FORKED, and
 * the child's handle ends.
 */
int32_t linerate_finalize(linerate_comm comm);

/**
 * Ends the handle of a communicator; 0 is allowed and does nothing. This rank leaves when the
 * handle and all that was made of it have been freed: operations, queues, fusion buffers, partial
 * and sparse allreduces. That call waits until the other ranks need nothing of this process, at
 * most the timeout of the settings.
 *
 * Threads: any; calls that are under way on other threads end as if the handle still were. After
 * fork: the child's handle ends, and the parent's communicator goes on.
 */
int32_t linerate_destroy(linerate_comm comm);

/**
 * Makes settings, to be changed by linerate_config_set(). What is not set is as the environment
 * (LINERATE_...) says when a communicator is made with them.
 *
 * Threads: any. The caller frees the handle (linerate_config_free()); communicators keep a copy.
 * After fork: the child may make, use and free settings.
 *
 * The caller's promise:
 * `config` is writable.
 */
int32_t linerate_config_create(linerate_config *config);

/**
 * Sets a value by the name that it has in the environment, such as ("LINERATE_TCP_RAILS", "4").
 * A value of NULL means the default, whatever the environment says. The text of the error of a
 * wrong name has all names; that of a wrong value has its range.
 *
 * Threads: one at a time for one handle. Both texts are copied. After fork: as before.
 *
 * The caller's promise:
 * `name` is a string, `value` a string or NULL.
 */
int32_t linerate_config_set(linerate_config config, const char *name, const char *value);

/**
 * Frees settings. 0 is allowed and does nothing. Threads: any. After fork: as before.
 */
int32_t linerate_config_free(linerate_config config);

/**
 * Makes a fusion buffer, which reduces a declared set of tensors in every step, several together,
 * while others are still computed. Every rank announces each tensor once in a step, in any order.
 * It works on a duplicate of `comm`, so operations on `comm` may run at any time. `options` may be
 * NULL. Collective: all ranks call it, with the same tensors and options.
 *
 * Threads: any, one at a time for one communicator. Tensors and options are copied. The caller
 * frees the handle (linerate_fusion_free()); it counts as a handle of the communicator until then.
 * After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `tensors` are `tensors_count` structs; `options` is a struct, or NULL, whose plan has a number
 * for each tensor; `fusion` is writable.
 */
int32_t linerate_fusion_create(linerate_comm comm,
                               const struct linerate_tensor *tensors,
                               uint64_t tensors_count,
                               const struct linerate_fusion_options *options,
                               linerate_fusion *fusion);

/**
 * Says that a tensor is computed and lies at `address`, and returns at once. The memory belongs to
 * the fusion buffer until linerate_fusion_wait() returns; then it holds the reduction. Memory of
 * linerate_alloc() or linerate_register() is the fastest.
 *
 * Threads: any, several at once. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `address` has the elements of the tensor.
 */
int32_t linerate_fusion_announce(linerate_fusion fusion, uint64_t tensor, void *address);

/**
 * Says that this rank announces no more tensors in this step, so that what is ready is reduced
 * without waiting for more. linerate_fusion_wait() does it, too: call this if the thread does
 * other work before.
 *
 * Threads: any. After fork: LINERATE_ERROR_FORKED.
 */
int32_t linerate_fusion_end(linerate_fusion fusion);

/**
 * Has a queue told, once, with the number `user`, when every tensor of this step is reduced, or
 * when the fusion buffer has failed; linerate_fusion_wait() then returns at once. Call
 * linerate_fusion_end(), too.
 *
 * Threads: any. After fork: LINERATE_ERROR_FORKED.
 */
int32_t linerate_fusion_notify(linerate_fusion fusion, linerate_queue queue, uint64_t user);

/**
 * Waits until every tensor of the step is reduced on this rank, and begins the next step. `report`
 * may be NULL. After an error, free the fusion buffer and make another one; the communicator from
 * which it was made is still good, unless a rank has died.
 *
 * Threads: any, one at a time for one fusion buffer. The announced memory is the caller's again.
 * After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `report` is a struct with its size, or NULL.
 */
int32_t linerate_fusion_wait(linerate_fusion fusion, struct linerate_step_report *report);

/**
 * Tells of a flush of the latest step that linerate_fusion_wait() has ended, by its number from 0
 * on. `report` may be NULL. Writes the numbers of its tensors to `tensors`, at most `capacity` of
 * them.
 *
 * Threads: one at a time for one fusion buffer. After fork: as before.
 *
 * The caller's promise:
 * `report` is a struct with its size, or NULL; `tensors` has room for `capacity` numbers.
 */
int32_t linerate_fusion_flush(linerate_fusion fusion,
                              uint64_t flush,
                              struct linerate_flush_report *report,
                              uint32_t *tensors,
                              uint64_t capacity);

/**
 * Frees a fusion buffer; 0 is allowed and does nothing. A step that is under way fails on all
 * ranks, so that none waits for this one.
 *
 * Threads: any. Announced memory is the caller's again. After fork: the child's handle ends, and
 * the parent's fusion buffer goes on.
 */
int32_t linerate_fusion_free(linerate_fusion fusion);

/**
 * Allocates zeroed memory that operations use where it lies, in place of copying it. A call takes
 * any address inside it; a part that lies in registered memory is found by its address. Not
 * collective. `address` is aligned for every type.
 *
 * Threads: any. The memory belongs to the caller until linerate_memory_free(); operations that use
 * it then keep it until they have ended. While an operation is under way on elements, the caller
 * does not write those that it reads, and neither reads nor writes those that it writes. After
 * fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `memory` and `address` are writable.
 */
int32_t linerate_alloc(linerate_comm comm, uint64_t bytes, linerate_memory *memory, void **address);

/**
 * Registers memory of the caller, once: calls on addresses inside it then use it where it lies,
 * without registering anything again. Not collective. Ranks of the same host copy it where they
 * cannot map it: see linerate_register_memfd().
 *
 * Threads: any. The memory stays mapped, readable and writable, until linerate_deregister() has
 * succeeded, or every communicator of the family and every operation is gone. After fork:
 * LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `address` has `bytes` bytes of the caller.
 */
int32_t linerate_register(linerate_comm comm, void *address, uint64_t bytes);

/**
 * As linerate_register(), of memory that is mapped, shared, from a memfd, from byte `offset` of it
 * on: ranks of the same host map it too. The descriptor is duplicated. The memfd has small pages
 * and allows sealing; its size is sealed, for good.
 *
 * The caller's promise:
 * As linerate_register(); the memory is a shared mapping of that part of the memfd.
 */
int32_t linerate_register_memfd(linerate_comm comm,
                                void *address,
                                uint64_t bytes,
                                int32_t fd,
                                uint64_t offset);

/**
 * Ends the registration that begins at `address`, in all communicators of the family. When it has
 * succeeded, nothing of the library uses the memory. LINERATE_ERROR_IN_USE: an operation uses some
 * of it, or other ranks may still read it; it stays registered then. Not collective.
 *
 * Threads: any. After fork: LINERATE_ERROR_FORKED.
 */
int32_t linerate_deregister(linerate_comm comm, void *address);

/**
 * How many bytes the memory has. Threads: any. After fork: as before.
 *
 * The caller's promise:
 * `bytes` is writable.
 */
int32_t linerate_memory_bytes(linerate_memory memory, uint64_t *bytes);

/**
 * Frees memory; 0 is allowed and does nothing. The address must not be used any more.
 *
 * Threads: any. After fork: the child's handle ends, and the parent keeps its memory.
 */
int32_t linerate_memory_free(linerate_memory memory);

/**
 * The reduction of `count` elements of all ranks, on every rank; in place if both
 * addresses are equal.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says.
 */
int32_t linerate_all_reduce(const void *sendbuf,
                            void *recvbuf,
                            uint64_t count,
                            uint32_t dtype,
                            uint32_t op,
                            linerate_comm comm);

/**
 * Rank r gets the reduction of block r: `count` elements per block, as many blocks in
 * `sendbuf` as ranks; in place if `recvbuf` is this rank's block of `sendbuf`.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says.
 */
int32_t linerate_reduce_scatter(const void *sendbuf,
                                void *recvbuf,
                                uint64_t count,
                                uint32_t dtype,
                                uint32_t op,
                                linerate_comm comm);

/**
 * Block r of every `recvbuf` is rank r's `sendbuf`: `count` elements per block; in place
 * if `sendbuf` is this rank's block of `recvbuf`.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says.
 */
int32_t linerate_all_gather(const void *sendbuf,
                            void *recvbuf,
                            uint64_t count,
                            uint32_t dtype,
                            linerate_comm comm);

/**
 * As linerate_all_gather(), with `counts[r]` elements of rank r; `counts` is equal on all
 * ranks.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says; counts have one number per rank.
 */
int32_t linerate_all_gather_v(const void *sendbuf,
                              void *recvbuf,
                              const uint64_t *counts,
                              uint32_t dtype,
                              linerate_comm comm);

/**
 * As linerate_gather(), with `counts[r]` elements of rank r; `counts` is equal on all ranks.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says; counts have one number per rank.
 */
int32_t linerate_gather_v(const void *sendbuf,
                          void *recvbuf,
                          const uint64_t *counts,
                          uint32_t dtype,
                          uint32_t root,
                          linerate_comm comm);

/**
 * As linerate_scatter(), with `counts[r]` elements for rank r; `counts` is equal on all ranks.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says; counts have one number per rank.
 */
int32_t linerate_scatter_v(const void *sendbuf,
                           void *recvbuf,
                           const uint64_t *counts,
                           uint32_t dtype,
                           uint32_t root,
                           linerate_comm comm);

/**
 * As linerate_reduce_scatter(), with `counts[r]` elements for rank r; `counts` is equal on all
 * ranks.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says; counts have one number per rank.
 */
int32_t linerate_reduce_scatter_v(const void *sendbuf,
                                  void *recvbuf,
                                  const uint64_t *counts,
                                  uint32_t dtype,
                                  uint32_t op,
                                  linerate_comm comm);

/**
 * The `count` elements of the root's `sendbuf`, in `recvbuf` of all ranks; the other
 * ranks may give a `sendbuf` of NULL.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says.
 */
int32_t linerate_broadcast(const void *sendbuf,
                           void *recvbuf,
                           uint64_t count,
                           uint32_t dtype,
                           uint32_t root,
                           linerate_comm comm);

/**
 * The reduction of `count` elements of all ranks, in the root's `recvbuf`; the other
 * ranks may give a `recvbuf` of NULL.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says.
 */
int32_t linerate_reduce(const void *sendbuf,
                        void *recvbuf,
                        uint64_t count,
                        uint32_t dtype,
                        uint32_t op,
                        uint32_t root,
                        linerate_comm comm);

/**
 * Block r of the root's `recvbuf` is rank r's `sendbuf`: `count` elements per block.
 * The other ranks may give a `recvbuf` of NULL.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says.
 */
int32_t linerate_gather(const void *sendbuf,
                        void *recvbuf,
                        uint64_t count,
                        uint32_t dtype,
                        uint32_t root,
                        linerate_comm comm);

/**
 * Rank r gets block r of the root's `sendbuf`: `count` elements per block. The other
 * ranks may give a `sendbuf` of NULL.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says.
 */
int32_t linerate_scatter(const void *sendbuf,
                         void *recvbuf,
                         uint64_t count,
                         uint32_t dtype,
                         uint32_t root,
                         linerate_comm comm);

/**
 * Block r of `sendbuf` goes to rank r, and block r of `recvbuf` comes from it: `count`
 * elements per block; in place if both addresses are equal.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says.
 */
int32_t linerate_all_to_all(const void *sendbuf,
                            void *recvbuf,
                            uint64_t count,
                            uint32_t dtype,
                            linerate_comm comm);

/**
 * As linerate_all_to_all(), with `send_counts[r]` elements to rank r and
 * `receive_counts[r]` from it, one after another. Never in place.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * The buffers hold what linerate_call says; counts have one number per rank.
 */
int32_t linerate_all_to_all_v(const void *sendbuf,
                              const uint64_t *send_counts,
                              void *recvbuf,
                              const uint64_t *receive_counts,
                              uint32_t dtype,
                              linerate_comm comm);

/**
 * Returns when all ranks have called it. Threads and fork: as linerate_run().
 */
int32_t linerate_barrier(linerate_comm comm);

/**
 * Sends `count` elements to rank `peer`, which receives as many from this one. Two ranks that send
 * to each other use linerate_group_run().
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * `count` elements lie at `sendbuf`.
 */
int32_t linerate_send(const void *sendbuf,
                      uint64_t count,
                      uint32_t dtype,
                      uint32_t peer,
                      linerate_comm comm);

/**
 * Receives `count` elements from rank `peer`, which sends as many to this one.
 *
 * Threads, owner and fork: as linerate_run().
 *
 * The caller's promise:
 * `recvbuf` has room for `count` elements.
 */
int32_t linerate_recv(void *recvbuf,
                      uint64_t count,
                      uint32_t dtype,
                      uint32_t peer,
                      linerate_comm comm);

/**
 * Makes a partial allreduce of vectors of `count` elements: rounds that do not wait for slow
 * ranks, whose gradients are in later rounds. In each step a rank submits its gradient and takes
 * the result of the step. Rounds may be under way while other operations of `comm` are. `options`
 * may be NULL. Collective: all ranks call it, with the same arguments.
 *
 * Threads: any, one at a time for one communicator. The caller frees the handle
 * (linerate_partial_free()); it counts as a handle of the communicator until then. After fork:
 * LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `options` is a struct, or NULL; `partial` is writable.
 */
int32_t linerate_partial_create(linerate_comm comm,
                                uint32_t dtype,
                                uint64_t count,
                                const struct linerate_partial_options *options,
                                linerate_partial *partial);

/**
 * Submits the gradient of this rank's next step; its number, from 0 on, goes to `step`, which may
 * be NULL. The gradient is copied. Waits only if the rank is `rounds_in_flight` steps ahead of the
 * last result that it has taken.
 *
 * Threads: any. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `gradient` has `count` elements; `step` is writable, or NULL.
 */
int32_t linerate_partial_submit(linerate_partial partial, const void *gradient, uint64_t *step);

/**
 * Takes the next result: waits for it, and copies it to `update`. LINERATE_IN_PROGRESS: none is
 * due before the next submit. `report` may be NULL. With LINERATE_ORDERED the results are those of
 * the rounds in order, and a rank that is behind gets its next one at once. After an error of a
 * round, free the partial allreduce; the communicator is still good, unless a rank has died.
 *
 * Threads: any. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `update` has room for `count` elements; `report` is NULL or a struct with its size, whose
 * addresses are NULL or have room.
 */
int32_t linerate_partial_next(linerate_partial partial,
                              void *update,
                              struct linerate_round_report *report);

/**
 * As linerate_partial_next(), and LINERATE_IN_PROGRESS instead of waiting. A rank that is behind
 * catches up by calling it until it returns that.
 *
 * Threads: any. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * As linerate_partial_next().
 */
int32_t linerate_partial_try_next(linerate_partial partial,
                                  void *update,
                                  struct linerate_round_report *report);

/**
 * Submits a gradient and takes the next result, faster than in two calls. `gradient` and `update`
 * may be equal.
 *
 * Threads: any. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * As linerate_partial_submit() and linerate_partial_next().
 */
int32_t linerate_partial_exchange(linerate_partial partial,
                                  const void *gradient,
                                  void *update,
                                  struct linerate_round_report *report);

/**
 * Runs a round that waits for all ranks and has everything that any of them has not delivered.
 * Every result that this rank has not taken yet, and that of this round, is copied to `update`,
 * one by one; `visit` is then called with `user` and its report, whose sets it may read during the
 * call. `visit` may be NULL where only the last result matters. Collective, after as many submits
 * on all ranks: at the end, and before validation and checkpoints. Submits may go on afterwards.
 *
 * Threads: any; `visit` runs on the calling thread, inside this call only. After fork:
 * LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `update` has room for `count` elements; `visit` returns.
 */
int32_t linerate_partial_finish(linerate_partial partial,
                                void *update,
                                linerate_visit visit,
                                void *user);

/**
 * Has a queue told, once, with the number `user`, when a result can be taken, or when the rounds
 * have failed; linerate_partial_next() then returns at once. An error if no result is due before
 * the next submit.
 *
 * Threads: any. After fork: LINERATE_ERROR_FORKED.
 */
int32_t linerate_partial_notify(linerate_partial partial, linerate_queue queue, uint64_t user);

/**
 * How many rounds this rank is behind: rounds that have ended less its submits, at least 0.
 * Threads: any. After fork: 0.
 *
 * The caller's promise:
 * `rounds` is writable.
 */
int32_t linerate_partial_lag(linerate_partial partial, uint64_t *rounds);

/**
 * Frees a partial allreduce; 0 is allowed and does nothing. Call linerate_partial_finish() before,
 * so that nothing is lost.
 *
 * Threads: any. After fork: the child's handle ends, and the parent's rounds go on.
 */
int32_t linerate_partial_free(linerate_partial partial);

/**
 * Makes a queue for operations of a communicator and of those made of it. Not collective.
 *
 * Threads: any. The caller frees it; it counts as a handle of the communicator until then. After
 * fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `queue` is writable.
 */
int32_t linerate_queue_create(linerate_comm comm, linerate_queue *queue);

/**
 * Waits until operations of the queue have ended, at most `limit_ns` nanoseconds (0: drives once
 * and looks), and takes at most `capacity` of them, first the one that has ended first. Writes how
 * many to `count`. Returns LINERATE_IN_PROGRESS if there is none. Set `size` of the first
 * completion; the library sets it in the others that it writes. Where one has failed, the text of
 * the last failed one is the last error of the calling thread.
 *
 * Threads: any, also several at once: each completion goes to one of them. After fork:
 * LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `completions` are `capacity` structs, `count` is writable.
 */
int32_t linerate_queue_wait(linerate_queue queue,
                            struct linerate_completion *completions,
                            uint64_t capacity,
                            uint64_t limit_ns,
                            uint64_t *count);

/**
 * A descriptor for poll, epoll or select that is readable exactly while completions wait to be
 * taken. Only poll it: it belongs to the queue and is closed with it. From the first call on, a
 * thread of the library moves the operations; with LINERATE_PROGRESS=inline it is an error.
 *
 * Threads: any. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `fd` is writable.
 */
int32_t linerate_queue_fd(linerate_queue queue, int32_t *fd);

/**
 * How many operations of the queue have not ended. Threads: any. After fork: 0 operations.
 *
 * The caller's promise:
 * `count` is writable.
 */
int32_t linerate_queue_running(linerate_queue queue, uint64_t *count);

/**
 * Frees a queue; 0 is allowed and does nothing. Operations in it go on, and their ends are told
 * nobody.
 *
 * Threads: any. After fork: the child's handle ends, and the parent's queue goes on.
 */
int32_t linerate_queue_free(linerate_queue queue);

/**
 * Makes a sparse allreduce of these tensors, all LINERATE_F32 with names of their own: every step
 * sums only the entries that matter, and keeps the rest in residuals, which the next steps add.
 * `options` may be NULL. Collective: all ranks call it, with the same tensors and options.
 *
 * Its steps are operations of `comm`: all ranks run and start them in one order with the others.
 *
 * Threads: any, one at a time for one communicator. Tensors and options are copied. The caller
 * frees the handle (linerate_sparse_free()); it counts as a handle of the communicator until then.
 * After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `tensors` are `tensors_count` structs; `options` is a struct, or NULL; `sparse` is writable.
 */
int32_t linerate_sparse_create(linerate_comm comm,
                               const struct linerate_tensor *tensors,
                               uint64_t tensors_count,
                               const struct linerate_sparse_options *options,
                               linerate_sparse *sparse);

/**
 * Runs a step and waits for its result, which linerate_sparse_add_to() and
 * linerate_sparse_entries() read. `gradients` has one address for each tensor; they are only read.
 * `report` may be NULL.
 *
 * Threads: one at a time for one sparse allreduce. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `gradients` are addresses of the elements of the tensors; `report` is a struct with its size, or
 * NULL.
 */
int32_t linerate_sparse_run(linerate_sparse sparse,
                            const void *const *gradients,
                            struct linerate_sparse_report *report);

/**
 * Starts a step and returns at once. linerate_sparse_test() moves it, as does who waits for its
 * queue. Until it has ended, start no other operation on the communicator, but on a duplicate.
 *
 * Threads: one at a time for one sparse allreduce. The gradients stay as they are until the step
 * has ended. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * As linerate_sparse_run().
 */
int32_t linerate_sparse_start(linerate_sparse sparse, const void *const *gradients);

/**
 * Moves the step that was started: 0 and its report if it has ended, LINERATE_IN_PROGRESS if not.
 * `report` may be NULL.
 *
 * Threads: one at a time for one sparse allreduce. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `report` is a struct with its size, or NULL.
 */
int32_t linerate_sparse_test(linerate_sparse sparse, struct linerate_sparse_report *report);

/**
 * Has a queue of the same family told, once, with the number `user`, when the step under way has
 * ended; linerate_sparse_test() then gives its result. Who waits for the queue moves the step.
 *
 * Threads: one at a time for one sparse allreduce. After fork: LINERATE_ERROR_FORKED.
 */
int32_t linerate_sparse_notify(linerate_sparse sparse, linerate_queue queue, uint64_t user);

/**
 * Runs a dense step of the residuals alone, which are zero afterwards. Collective: before the
 * ranks change, and at the end of the training. `report` may be NULL.
 *
 * Threads: one at a time for one sparse allreduce. After fork: LINERATE_ERROR_FORKED.
 *
 * The caller's promise:
 * `report` is a struct with its size, or NULL.
 */
int32_t linerate_sparse_flush(linerate_sparse sparse, struct linerate_sparse_report *report);

/**
 * Adds `factor` times the latest result to `outputs`, one address for each tensor. With the
 * negative learning rate this is a step of gradient descent.
 *
 * Threads: one at a time for one sparse allreduce. After fork: as before.
 *
 * The caller's promise:
 * `outputs` are addresses of the elements of the tensors.
 */
int32_t linerate_sparse_add_to(linerate_sparse sparse, void *const *outputs, float factor);

/**
 * The non-zero values of a tensor in the latest result: ascending indices, relative to the tensor,
 * and values. Writes at most `capacity` of each, and how many there are to `count`.
 *
 * Threads: one at a time for one sparse allreduce. After fork: as before.
 *
 * The caller's promise:
 * `indices` and `values` have room for `capacity` numbers; `count` is writable.
 */
int32_t linerate_sparse_entries(linerate_sparse sparse,
                                uint64_t tensor,
                                uint64_t *indices,
                                float *values,
                                uint64_t capacity,
                                uint64_t *count);

/**
 * The entries of a tensor that this rank selected in the latest step, as
 * linerate_sparse_entries(): each has the sum of residual and gradient.
 *
 * Threads: one at a time for one sparse allreduce. After fork: as before.
 *
 * The caller's promise:
 * As linerate_sparse_entries().
 */
int32_t linerate_sparse_picks(linerate_sparse sparse,
                              uint64_t tensor,
                              uint64_t *indices,
                              float *values,
                              uint64_t capacity,
                              uint64_t *count);

/**
 * Where the residual of a tensor lies, as many floats as the tensor has. The caller may read and
 * change it between steps, until linerate_sparse_free().
 *
 * Threads: one at a time for one sparse allreduce. After fork: the child has its own copy.
 *
 * The caller's promise:
 * `address` is writable.
 */
int32_t linerate_sparse_residual(linerate_sparse sparse, uint64_t tensor, float **address);

/**
 * Sets all residuals of this rank to zero, and forgets its thresholds. All ranks call it between
 * the same two steps. Threads: one at a time for one sparse allreduce. After fork: the child's
 * copy.
 */
int32_t linerate_sparse_reset(linerate_sparse sparse);

/**
 * Multiplies all residuals of this rank by `factor`: for a trainer that changes the scale of its
 * gradients. Threads: one at a time for one sparse allreduce. After fork: the child's copy.
 */
int32_t linerate_sparse_scale(linerate_sparse sparse, float factor);

/**
 * Saves the residuals of this rank for linerate_sparse_load(): at most `capacity` bytes go to
 * `buffer`, and their whole number to `needed`. With a capacity that is too small, nothing is
 * written but the number.
 *
 * Threads: one at a time for one sparse allreduce. After fork: the child's copy.
 *
 * The caller's promise:
 * `buffer` has `capacity` bytes, or is NULL with a capacity of 0; `needed` is writable.
 */
int32_t linerate_sparse_save(linerate_sparse sparse,
                             void *buffer,
                             uint64_t capacity,
                             uint64_t *needed);

/**
 * Loads what linerate_sparse_save() has saved on this rank. All ranks load before the same step.
 * With `is_resized` not 0 the number of ranks may have changed since; a rank that is new then
 * calls linerate_sparse_reset() instead. LINERATE_ERROR_MALFORMED: the bytes are nothing that was
 * saved, or were saved with other tensors; nothing has changed.
 *
 * Threads: one at a time for one sparse allreduce. After fork: the child's copy.
 *
 * The caller's promise:
 * `saved` has `bytes` bytes.
 */
int32_t linerate_sparse_load(linerate_sparse sparse,
                             const void *saved,
                             uint64_t bytes,
                             uint32_t is_resized);

/**
 * Frees a sparse allreduce; 0 is allowed and does nothing. Its residuals are gone then.
 *
 * Threads: any. After fork: the child's handle ends.
 */
int32_t linerate_sparse_free(linerate_sparse sparse);

/**
 * The name of a status, such as LINERATE_ERROR_TIMEOUT; of a number that is none, "unknown
 * status". The text is constant and never freed. Threads: any. After fork: as before.
 */
const char *linerate_status_text(int32_t status);

/**
 * The text of the last error of the calling thread: what was tried, with which values, and what to
 * do. It is empty if no call of this thread has failed; a call that succeeds leaves it as it is.
 *
 * Writes at most `capacity` bytes to `buffer`, the last of them 0, and the length of the whole
 * text with its 0 to `needed`. Either may be NULL, `buffer` with a capacity of 0.
 *
 * Threads: any; each has its own error. After fork: as before.
 *
 * The caller's promise:
 * `buffer` has `capacity` bytes; `needed` is NULL or writable.
 */
int32_t linerate_last_error_text(char *buffer, uint64_t capacity, uint64_t *needed);

/**
 * The status of the first cause of the last error of the calling thread; 0 if no call of it has
 * failed. Where the error is LINERATE_ERROR_COMMUNICATOR_FAILED, it is what failed the
 * communicator; else it is the status that the call has returned.
 *
 * Threads: any; each has its own error. After fork: as before.
 */
int32_t linerate_last_error_cause(void);

/**
 * The ranks that the first cause of the last error of the calling thread names: those missing
 * after a timeout, the one that failed, left, cancelled or aborted. Writes at most `capacity` of
 * them to `ranks`, and how many there are to `count`.
 *
 * Threads: any; each has its own error. After fork: as before.
 *
 * The caller's promise:
 * `ranks` has room for `capacity` numbers; `count` is writable.
 */
int32_t linerate_last_error_ranks(uint32_t *ranks, uint64_t capacity, uint64_t *count);

/**
 * Starts a send or a receive with a tag and returns at once. Messages of one rank with one tag are
 * received in the order in which their sends were started, by receives in the order in which those
 * were started. Collectives and groups never meet them. A short send may end before it is
 * received. Up to 48 messages from one rank to another wait for their receives; what is sent after
 * them waits at the sender, whatever its tag. With a queue, `operation` may be NULL.
 *
 * Threads, owner and fork: as linerate_start().
 *
 * The caller's promise:
 * `message` is a struct whose address holds its elements until the operation has ended;
 * `operation` is writable, or NULL.
 */
int32_t linerate_message_start(linerate_comm comm,
                               const struct linerate_message *message,
                               linerate_operation *operation);

/**
 * The rank whose message a receive with a tag has met; LINERATE_ANY_RANK: it has met none yet, or
 * the operation is another one. Threads: one at a time for one operation. After fork: as before.
 *
 * The caller's promise:
 * `rank` is writable.
 */
int32_t linerate_source(linerate_operation operation, uint32_t *rank);

/**
 * Ends a receive with a tag that has met no message, alone: its status is
 * LINERATE_ERROR_RECEIVE_CANCELLED then, and the next receive gets the message that it would have
 * got. LINERATE_IN_PROGRESS: there is nothing to cancel; it has met a message and goes on, has
 * ended, or is another operation. Threads: one at a time for one operation. After fork:
 * LINERATE_ERROR_FORKED.
 */
int32_t linerate_cancel_receive(linerate_operation operation);

/**
 * Reads the gradients of a step of training: `name` is "resnet50", "resnet101" or "vgg16", which
 * are built in, or a file that torch.profiler, Horovod or `linerate replay --trace-out` has
 * written. Writes at most `capacity` gradients, and how many there are to `needed`; ask for the
 * number first, with a capacity of 0. `step` and `needed` may be NULL.
 *
 * Threads: any. After fork: as before.
 *
 * The caller's promise:
 * `name` is a string; `gradients` are `capacity` structs, of which the first has its size;
 * `needed` is writable or NULL; `step` is a struct with its size, or NULL.
 */
int32_t linerate_trace_load(const char *name,
                            struct linerate_gradient *gradients,
                            uint64_t capacity,
                            uint64_t *needed,
                            struct linerate_step *step);

/**
 * Predicts a step of training with these gradients. `step` may be NULL.
 *
 * Threads: any. After fork: as before.
 *
 * The caller's promise:
 * `whatif` and `prediction` are structs with their size; `gradients` are `count` structs; `step`
 * is a struct or NULL.
 */
int32_t linerate_whatif_predict(const struct linerate_whatif *whatif,
                                const struct linerate_gradient *gradients,
                                uint64_t count,
                                const struct linerate_step *step,
                                struct linerate_prediction *prediction);

/**
 * Runs a collective on a fabric in virtual time, from its schedules alone. Writes the name of the
 * algorithm to `algorithm`, cut if `capacity` is too small, always with its 0.
 *
 * Threads: any; it uses all cores for a while. After fork: as before.
 *
 * The caller's promise:
 * `call` is a struct with its size, whose texts are strings or NULL; `times` is a struct with its
 * size, or NULL; `algorithm` has `capacity` bytes.
 */
int32_t linerate_fabric_run(const struct linerate_fabric_call *call,
                            struct linerate_fabric_times *times,
                            char *algorithm,
                            uint64_t capacity);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LINERATE_H */
