#pragma once

/// @file
/// The cases of the C program that calls every function of kvarena.h, and what they share. A case
/// that finds something wrong prints a line and goes on; the program then fails.

#include <kvarena/kvarena.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/// Counts and prints a failed check.
void fail(const char* file, int line, const char* what);
/// How many checks have failed.
int failures(void);

/// The condition holds.
#define CHECK(condition)                                    \
  do {                                                      \
    if (!(condition)) fail(__FILE__, __LINE__, #condition); \
  } while (0)

/// The call returns a status with this code (and resource).
#define EXPECT_CODE(call, expected) expect((call), (expected), -1, __FILE__, __LINE__, #call)
#define EXPECT_STATUS(call, expected, about) \
  expect((call), (expected), (about), __FILE__, __LINE__, #call)
#define EXPECT_OK(call) EXPECT_CODE(call, KVARENA_OK)
void expect(kvarena_status status, int code, int resource, const char* file, int line,
            const char* call);

/// A struct with its size, the rest zero.
#define SIZED(type) ((type){.struct_size = sizeof(type)})

enum { kHeads = 2, kDim = 16, kBlocks = 24, kBlockSize = 16 };

/// A host device with a small cache of two layers; `log` may be NULL.
typedef struct site {
  kvarena_device* device;
  kvarena_cache* cache;
} site;
site open_site(kvarena_operation_function log, void* user);
void close_site(site* opened);
/// The options of that cache.
kvarena_cache_options cache_options(void);
/// Appends tokens to a sequence in a step of its own, with K and V of every layer.
void append_tokens(kvarena_cache* cache, kvarena_sequence sequence, int count);

/// Does the same with the values of the tokens, at most 256, for the prefix cache.
void append_told(kvarena_cache* cache, kvarena_sequence sequence, const int32_t* tokens, int count);

/// The cases.
void test_library(void);
void test_devices(void);
void test_memory(void);
void test_memory_of_objects(void);
void test_cache(void);
void test_sequences(void);
void test_control(void);
void test_steps(void);
void test_recordings(void);
void test_tickets(void);
void test_questions(void);
void test_layout(void);
void test_pool(void);
void test_pool_refusals(void);
void test_pool_prefixes(void);
void test_pool_prefix_refusals(void);
void test_kernels(void);
void test_plans(void);
void test_monitor(void);
void test_monitor_refusals(void);
void test_watches(void);
void test_bad_handles(void);
void test_struct_sizes(void);
void test_null_arguments(void);
void test_null_text(void);
void test_second_thread(void);
void test_second_thread_in_pool(void);
void test_second_thread_in_kernels(void);
void test_release_wins(void);
void test_many_handles(void);
void test_wild_counts(void);
void test_groups(void);
void test_index(void);
void test_states(void);
void test_prefixes(void);
void test_accounts(void);
void test_prefix_use(void);
void test_prefix_events(void);
void test_retentions(void);
void test_cuda(void);
