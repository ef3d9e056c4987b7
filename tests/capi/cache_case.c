// A cache: sequences, steps, tickets, questions.

#include "capi_test.h"

void test_cache(void) {
  kvarena_device* device = NULL;
  EXPECT_OK(kvarena_device_open_host(NULL, &device));
  kvarena_cache_options options = cache_options(), found = SIZED(kvarena_cache_options);
  kvarena_cache* cache = NULL;
  EXPECT_OK(kvarena_cache_create(device, &options, &cache));
  EXPECT_OK(kvarena_cache_ask(cache, &found));
  CHECK(found.num_blocks == kBlocks && found.head_dim_v == kDim && found.block_size_tokens == 16);
  CHECK(found.tile_order == KVARENA_TILE_ROWS && found.steps_in_flight == 2);
  // What is answered makes the same cache.
  kvarena_cache* again = NULL;
  EXPECT_OK(kvarena_cache_create(device, &found, &again));
  EXPECT_OK(kvarena_cache_release(again));
  // The prediction is the allocation.
  kvarena_target target = SIZED(kvarena_target);
  kvarena_footprint footprint = SIZED(kvarena_footprint), fitted = SIZED(kvarena_footprint);
  EXPECT_OK(kvarena_device_target(device, &target));
  EXPECT_OK(kvarena_cache_footprint(&options, &target, 0, &footprint));
  kvarena_device_info info = SIZED(kvarena_device_info);
  EXPECT_OK(kvarena_device_ask(device, &info));
  CHECK((int64_t)info.tracked_bytes == footprint.device_bytes);
  EXPECT_OK(kvarena_cache_fit(&options, &target, footprint.device_bytes, &fitted));
  CHECK(fitted.num_blocks == kBlocks);
  EXPECT_CODE(kvarena_cache_fit(&options, &target, 10, &fitted), KVARENA_INSUFFICIENT_VRAM);
  char text[400];
  const kvarena_status exhausted = {.code = KVARENA_EXHAUSTED, .resource = KVARENA_RESOURCE_BLOCK};
  EXPECT_OK(kvarena_cache_describe(cache, &exhausted, text, sizeof text, NULL));
  CHECK(strstr(text, "blocks") != NULL);
  EXPECT_OK(kvarena_cache_release(cache));
  EXPECT_CODE(kvarena_cache_release(cache), KVARENA_STALE_HANDLE);
  EXPECT_OK(kvarena_cache_release(NULL));

  // Every option that is out of its range is refused, and nothing is kept.
  options.num_q_heads = 3;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  options = cache_options();
  options.dtype = 9;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  options = cache_options();
  options.budget_bytes = 1;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  options = cache_options();
  options.scrub = 3;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  options = cache_options();
  options.block_order = -1;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  options = cache_options();
  options.tile_order = KVARENA_TILE_CHUNKED;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_UNSUPPORTED);
  options = cache_options();
  options.reserved = 1;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_UNSUPPORTED);
  options = cache_options();
  options.all_free_but_bytes = -2;
  EXPECT_CODE(kvarena_cache_create(device, &options, &cache), KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_device_ask(device, &info));
  CHECK(info.tracked_bytes == 0);
  EXPECT_OK(kvarena_device_release(device));
}

void test_sequences(void) {
  site s = open_site(NULL, NULL);
  kvarena_sequence a = 0, b = 0, found[8];
  kvarena_sequence_options options = {
      .struct_size = sizeof options, .max_length_tokens = 100, .since_ns = 5, .owner = 77};
  EXPECT_OK(kvarena_sequence_create(s.cache, &options, &a));
  append_tokens(s.cache, a, 20);
  EXPECT_OK(kvarena_sequence_fork(s.cache, a, 17, NULL, &b));
  EXPECT_STATUS(kvarena_sequence_fork(s.cache, a, 21, NULL, &b), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_SEQUENCE_LENGTH);
  kvarena_sequence_info info = SIZED(kvarena_sequence_info);
  EXPECT_OK(kvarena_sequence_ask(s.cache, b, &info));
  CHECK(info.length_tokens == 17 && info.num_blocks == 2 && info.owner == 77);
  EXPECT_OK(kvarena_sequence_ask(s.cache, a, &info));
  CHECK(info.max_length_tokens == 100 && info.since_ns == 5 && info.holder != 0);
  CHECK(info.import_state == KVARENA_IMPORT_NONE);
  int32_t blocks[8], tables[2][4], lengths[2];
  size_t count = 0;
  EXPECT_OK(kvarena_sequence_blocks(s.cache, b, blocks, 8, &count));
  CHECK(count == 2);
  count = 0;
  EXPECT_STATUS(kvarena_sequence_blocks(s.cache, b, blocks, 1, &count), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_SPAN_SIZE);
  CHECK(count == 2);
  int64_t slot = -1;
  EXPECT_OK(kvarena_sequence_slot(s.cache, b, 16, &slot));
  CHECK(slot == (int64_t)blocks[1] * kBlockSize);
  EXPECT_STATUS(kvarena_sequence_slot(s.cache, b, 17, &slot), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_TOKEN_INDEX);
  const kvarena_sequence both[2] = {b, a};
  EXPECT_OK(kvarena_sequence_tables(s.cache, both, 2, &tables[0][0], 4, lengths));
  CHECK(tables[0][0] == blocks[0] && tables[0][1] == blocks[1] && tables[0][2] == -1);
  CHECK(tables[1][0] == blocks[0] && lengths[0] == 17 && lengths[1] == 20);
  EXPECT_STATUS(kvarena_sequence_tables(s.cache, both, 2, &tables[0][0], 1, lengths),
                KVARENA_INVALID_ARGUMENT, KVARENA_RESOURCE_SPAN_SIZE);
  EXPECT_OK(kvarena_sequence_list(s.cache, found, 8, &count));
  CHECK(count == 2 && found[0] == a && found[1] == b);
  EXPECT_CODE(kvarena_sequence_list(s.cache, found, 1, &count), KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_sequence_reserve(s.cache, a, 40, KVARENA_URGENCY_DEFAULT));
  EXPECT_CODE(kvarena_sequence_reserve(s.cache, a, 40, 9), KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_sequence_promise(s.cache, a, 60));
  EXPECT_CODE(kvarena_sequence_promise(s.cache, a, 100000), KVARENA_CONTEXT_LENGTH_EXCEEDED);
  EXPECT_OK(kvarena_sequence_truncate(s.cache, a, 3, 0));
  EXPECT_CODE(kvarena_sequence_truncate(s.cache, a, 4, 0), KVARENA_INVALID_ARGUMENT);
  EXPECT_CODE(kvarena_sequence_truncate(s.cache, a, 1, 12345), KVARENA_NOT_FOUND);
  const kvarena_sequence twice[2] = {a, a};
  EXPECT_CODE(kvarena_sequence_destroy(s.cache, twice, 2, 0), KVARENA_DUPLICATE_ARGUMENT);
  EXPECT_OK(kvarena_sequence_destroy(s.cache, both, 2, 0));
  EXPECT_CODE(kvarena_sequence_destroy(s.cache, both, 2, 0), KVARENA_NOT_FOUND);
  EXPECT_CODE(kvarena_sequence_ask(s.cache, a, &info), KVARENA_NOT_FOUND);
  close_site(&s);
}

void test_steps(void) {
  site s = open_site(NULL, NULL);
  kvarena_sequence a = 0;
  EXPECT_OK(kvarena_sequence_create(s.cache, NULL, &a));
  kvarena_batch batch = SIZED(kvarena_batch);
  kvarena_demand demand = {.sequence = a, .num_tokens = 2};
  EXPECT_STATUS(kvarena_step_append(s.cache, &demand, 1, 0, &batch), KVARENA_FAILED_PRECONDITION,
                KVARENA_RESOURCE_STEP);
  EXPECT_STATUS(kvarena_step_end(s.cache), KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_STEP);
  EXPECT_OK(kvarena_step_begin(s.cache, NULL));
  EXPECT_STATUS(kvarena_step_begin(s.cache, NULL), KVARENA_FAILED_PRECONDITION,
                KVARENA_RESOURCE_STEP);
  demand.num_tokens = kBlocks * kBlockSize;
  demand.num_tokens = 256;
  EXPECT_OK(kvarena_step_append(s.cache, &demand, 1, KVARENA_GROWTH, &batch));
  CHECK(batch.num_tokens == 256 && batch.new_blocks == 16 && batch.slots != NULL);
  float k[256 * kHeads * kDim] = {0}, out[256 * kHeads * kDim];
  kvarena_write_args write = {.struct_size = sizeof write, .key = k, .value = k, .layer = 9};
  write.dtype = KVARENA_F32;
  EXPECT_STATUS(kvarena_step_write(s.cache, &write), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_LAYER);
  write.layer = 0;
  kvarena_attend_args attend = {.struct_size = sizeof attend, .q = k, .out = out};
  attend.q_dtype = attend.out_dtype = KVARENA_F32;
  EXPECT_STATUS(kvarena_step_attend(s.cache, &attend), KVARENA_FAILED_PRECONDITION,
                KVARENA_RESOURCE_LAYER);
  EXPECT_OK(kvarena_step_write(s.cache, &write));
  EXPECT_OK(kvarena_step_attend(s.cache, &attend));
  write.dtype = 8;
  EXPECT_CODE(kvarena_step_write(s.cache, &write), KVARENA_INVALID_ARGUMENT);
  attend.out_dtype = -1;
  EXPECT_CODE(kvarena_step_attend(s.cache, &attend), KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_step_abort(s.cache));
  EXPECT_OK(kvarena_cache_synchronize(s.cache));
  kvarena_sequence_info info = SIZED(kvarena_sequence_info);
  EXPECT_OK(kvarena_sequence_ask(s.cache, a, &info));
  CHECK(info.length_tokens == 0);

  // A step that does not fit names its demand.
  kvarena_sequence b = 0;
  EXPECT_OK(kvarena_sequence_create(s.cache, NULL, &b));
  append_tokens(s.cache, a, 256);
  EXPECT_OK(kvarena_step_begin(s.cache, NULL));
  const kvarena_demand two[2] = {{.sequence = a, .num_tokens = 1},
                                 {.sequence = b, .num_tokens = 150}};
  int64_t failed = -1;
  EXPECT_STATUS(kvarena_step_append(s.cache, two, 2, 0, &batch), KVARENA_EXHAUSTED,
                KVARENA_RESOURCE_BLOCK);
  EXPECT_OK(kvarena_step_failed_demand(s.cache, &failed));
  CHECK(failed == 1);
  EXPECT_CODE(kvarena_step_append(s.cache, two, 2, 7, &batch), KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_step_end(s.cache));
  EXPECT_OK(kvarena_cache_publish(s.cache));
  EXPECT_OK(kvarena_cache_check(s.cache));
  close_site(&s);
}

void test_recordings(void) {
  site s = open_site(NULL, NULL);
  kvarena_batch batch = SIZED(kvarena_batch);
  kvarena_recorded_step shape = {.struct_size = sizeof shape, .num_rows = 2};
  EXPECT_CODE(kvarena_recording_begin(s.cache, &shape, NULL, &batch), KVARENA_UNSUPPORTED);
  EXPECT_STATUS(kvarena_recording_end(s.cache), KVARENA_FAILED_PRECONDITION, KVARENA_RESOURCE_STEP);
  EXPECT_OK(kvarena_step_begin(s.cache, NULL));
  EXPECT_CODE(kvarena_step_append_recorded(s.cache, &shape, NULL, 0, 0, &batch),
              KVARENA_UNSUPPORTED);
  EXPECT_OK(kvarena_step_end(s.cache));
  close_site(&s);
}

void test_tickets(void) {
  site s = open_site(NULL, NULL);
  kvarena_sequence a = 0;
  EXPECT_OK(kvarena_sequence_create(s.cache, NULL, &a));
  append_tokens(s.cache, a, 40);
  void *other = NULL, *own = NULL;
  EXPECT_OK(kvarena_stream_create(s.device, &other));
  EXPECT_OK(kvarena_cache_stream(s.cache, &own));
  CHECK(own != NULL && own != other);
  kvarena_ticket open = 0, fence = 0, streamed = 0;
  EXPECT_OK(kvarena_ticket_open(s.cache, NULL, &open));
  EXPECT_OK(kvarena_ticket_open(s.cache, other, &streamed));
  EXPECT_OK(kvarena_ticket_fence(s.cache, other, &fence));
  EXPECT_STATUS(kvarena_ticket_fence(s.cache, NULL, &fence), KVARENA_INVALID_ARGUMENT,
                KVARENA_RESOURCE_POINTER);
  EXPECT_STATUS(kvarena_ticket_fence(s.cache, &s, &fence), KVARENA_NOT_FOUND,
                KVARENA_RESOURCE_STREAM);
  EXPECT_OK(kvarena_sequence_destroy(s.cache, &a, 1, open));
  int64_t now = 0, after = 0;
  EXPECT_OK(kvarena_cache_available(s.cache, streamed, &now, &after));
  CHECK(now == kBlocks - 3 && after == kBlocks);
  EXPECT_OK(kvarena_ticket_retire(s.cache, open));
  EXPECT_OK(kvarena_ticket_retire(s.cache, streamed));
  EXPECT_CODE(kvarena_ticket_retire(s.cache, open), KVARENA_NOT_FOUND);
  EXPECT_CODE(kvarena_ticket_retire(s.cache, fence), KVARENA_FAILED_PRECONDITION);
  EXPECT_OK(kvarena_cache_publish(s.cache));
  EXPECT_CODE(kvarena_ticket_retire(s.cache, fence), KVARENA_NOT_FOUND);
  EXPECT_OK(kvarena_cache_available(s.cache, 0, &now, NULL));
  CHECK(now == kBlocks);
  EXPECT_OK(kvarena_stream_destroy(s.device, other));
  close_site(&s);
}

void test_questions(void) {
  site s = open_site(NULL, NULL);
  kvarena_sequence_options options = {.struct_size = sizeof options, .owner = 901};
  kvarena_sequence a = 0;
  EXPECT_OK(kvarena_sequence_create(s.cache, &options, &a));
  append_tokens(s.cache, a, 100);
  kvarena_stats stats = SIZED(kvarena_stats);
  EXPECT_OK(kvarena_cache_stats(s.cache, &stats));
  CHECK(stats.num_blocks == kBlocks && stats.free_blocks == kBlocks - 7 && stats.tokens == 100);
  CHECK(stats.step == 1 && stats.sequences == 1 && stats.audit_failure.code == KVARENA_OK);
  kvarena_stats dirty;  // every member is written, whatever lay there
  memset(&dirty, 0xff, sizeof dirty);
  dirty.struct_size = sizeof dirty;
  EXPECT_OK(kvarena_cache_stats(s.cache, &dirty));
  CHECK(memcmp(&dirty, &stats, sizeof dirty) == 0);
  stats = SIZED(kvarena_stats);
  EXPECT_OK(kvarena_cache_snapshot(s.cache, &stats));
  CHECK(stats.referenced == 7 && stats.step == 1);
  bool flag = false;
  EXPECT_OK(kvarena_cache_has_pending_work(s.cache, &flag));
  CHECK(!flag);
  char text[4096];
  size_t length = 0;
  EXPECT_OK(kvarena_cache_stats_json(s.cache, text, sizeof text, &length));
  CHECK(strstr(text, "\"tokens\":100") != NULL);
  CHECK(strstr(text, "\"pages\":null,\"groups\":[]") != NULL);
  CHECK(strstr(text, "\"prefix_cache\":null") != NULL);
  EXPECT_OK(kvarena_cache_request_details(s.cache));
  EXPECT_OK(kvarena_cache_publish(s.cache));
  EXPECT_OK(kvarena_cache_details_json(s.cache, text, sizeof text, &length));
  CHECK(strstr(text, "\"holders\":[{") != NULL);
  EXPECT_OK(kvarena_cache_can_allocate(s.cache, kBlocks - 7, KVARENA_GROWTH, &flag));
  CHECK(flag);
  EXPECT_OK(kvarena_cache_can_allocate(s.cache, kBlocks - 7, KVARENA_ADMISSION, &flag));
  CHECK(!flag);
  EXPECT_CODE(kvarena_cache_can_allocate(s.cache, -1, 0, &flag), KVARENA_INVALID_ARGUMENT);
  kvarena_explanation why = SIZED(kvarena_explanation);
  EXPECT_OK(kvarena_cache_explain(s.cache, NULL, 100, KVARENA_URGENCY_DEFAULT, &why));
  CHECK(!why.fits && why.missing == 100 - 17 && why.num_largest == 1);
  CHECK(why.largest[0].owner == 901 && why.returning[0] == 7 && why.returning[1] == -1);
  CHECK(strcmp(why.largest[0].purpose, "sequence") == 0);
  EXPECT_OK(kvarena_cache_explain_json(s.cache, NULL, 100, 0, text, sizeof text, &length));
  CHECK(text[0] == '{' && strlen(text) == length);
  EXPECT_OK(kvarena_cache_explain_text(s.cache, NULL, 100, 0, text, sizeof text, &length));
  CHECK(strstr(text, "out of blocks") != NULL);
  const kvarena_status refused = kvarena_sequence_reserve(s.cache, a, 100 * kBlockSize, 0);
  EXPECT_CODE(refused, KVARENA_EXHAUSTED);
  EXPECT_OK(kvarena_cache_explain(s.cache, &refused, 0, 0, &why));
  CHECK(why.urgency == KVARENA_ADMISSION && why.requested == 93);
  const kvarena_status ok = {0};
  EXPECT_CODE(kvarena_cache_explain(s.cache, &ok, 0, 0, &why), KVARENA_INVALID_ARGUMENT);
  EXPECT_CODE(kvarena_cache_explain(s.cache, NULL, -1, 0, &why), KVARENA_INVALID_ARGUMENT);
  kvarena_holder_report holders[2];
  EXPECT_OK(kvarena_cache_holders(s.cache, holders, 2, &length));
  CHECK(length == 1 && holders[0].number == a && holders[0].references == 7);
  EXPECT_CODE(kvarena_cache_holders(s.cache, holders, 0, &length), KVARENA_INVALID_ARGUMENT);
  kvarena_block_info block = SIZED(kvarena_block_info);
  EXPECT_OK(kvarena_cache_block(s.cache, 0, &block));
  CHECK(block.state == KVARENA_BLOCK_REFERENCED && block.reference_count == 1);
  EXPECT_STATUS(kvarena_cache_block(s.cache, kBlocks, &block), KVARENA_NOT_FOUND,
                KVARENA_RESOURCE_BLOCK);
  kvarena_plane plane = SIZED(kvarena_plane);
  EXPECT_OK(kvarena_cache_plane(s.cache, 1, KVARENA_VALUE, &plane));
  CHECK(plane.base != NULL && plane.head_dim == kDim && plane.dtype == KVARENA_F16);
  EXPECT_CODE(kvarena_cache_plane(s.cache, 2, KVARENA_VALUE, &plane), KVARENA_INVALID_ARGUMENT);
  EXPECT_CODE(kvarena_cache_plane(s.cache, 1, 5, &plane), KVARENA_INVALID_ARGUMENT);
  EXPECT_OK(kvarena_cache_check(s.cache));
  close_site(&s);
}
