// Moves on the block manager: holders that are not sequences, tickets, caching, quarantine.

#include "model/model_driver.hpp"

#include <algorithm>
#include <optional>

namespace kvarena::model {
namespace {

constexpr std::size_t kMaxOutsiders = 6;

/// Handles as the manager takes them.
struct Spans {
  std::vector<BlockId> ids;
  std::vector<Generation> generations;

  explicit Spans(std::span<const Handle> handles) {
    for (const Handle& handle : handles) {
      ids.push_back(handle.id);
      generations.push_back(handle.generation);
    }
  }
};

}  // namespace

void ModelDriver::register_outsider() {
  if (outsiders_.size() >= kMaxOutsiders) return;
  const HolderInfo info{.number = random_() % 100, .purpose = "outsider", .since_ns = operation_};
  const Status predicted = pool_.can_register();
  const Result<HolderId> real = manager_.register_holder(info);
  expect_status(real.status(), predicted, "register_holder");
  if (failed() || !real) return;
  if (!pool_.adopt_holder(*real, info)) fail("a holder id came back");
  outsiders_.push_back({*real, {}});
}

void ModelDriver::unregister_outsider() {
  const HolderId id = any_holder();
  const Status predicted = pool_.unregister_holder(id);
  expect_status(manager_.unregister_holder(id), predicted, "unregister_holder");
  if (predicted) std::erase_if(outsiders_, [id](const Outsider& o) { return o.holder == id; });
}

void ModelDriver::reserve_for_outsider() {
  const HolderId id = any_holder();
  const auto blocks = static_cast<std::uint64_t>(game_.pool.num_blocks);
  std::int64_t count = static_cast<std::int64_t>(below(blocks / 4 + 2));
  if (one_in(20)) count = static_cast<std::int64_t>(below(blocks + 3)) - 1;
  if (one_in(60)) count = -1;
  expect_status(manager_.reserve(id, count), pool_.reserve(id, count), "reserve");
}

void ModelDriver::allocate_for_outsider() {
  const auto blocks = static_cast<std::uint64_t>(game_.pool.num_blocks);
  const std::uint64_t most = one_in(20) ? blocks + 2 : std::min<std::uint64_t>(blocks / 2 + 1, 24);
  Spans got{{}};
  got.ids.resize(below(most + 1));
  got.generations.resize(got.ids.size());
  const Want want{any_holder(), static_cast<std::int64_t>(got.ids.size())};
  const Urgency urgency = any_urgency();
  const Result<Grant> model = pool_.allocate(std::span(&want, 1), urgency);
  const Result<std::int64_t> real =
      manager_.allocate(want.holder, got.ids, got.generations, urgency);
  expect_grant(real, model, got.ids, got.generations);
  if (failed() || !model) return;
  for (Outsider& outsider : outsiders_) {
    if (outsider.holder != want.holder) continue;
    outsider.handles.insert(outsider.handles.end(), model->handles.begin(), model->handles.end());
  }
}

void ModelDriver::allocate_for_several() {
  std::vector<Want> wants;
  std::vector<HolderDemand> demands;
  std::size_t total = 0;
  for (const Outsider& outsider : outsiders_) {
    if (one_in(2)) continue;
    const auto count = static_cast<std::uint32_t>(below(5));
    const auto urgency = one_in(2) ? std::optional(any_urgency()) : std::nullopt;
    wants.push_back({outsider.holder, count, urgency});
    demands.push_back({outsider.holder, count, urgency});
    total += count;
  }
  if (!wants.empty() && one_in(20)) {
    wants.push_back(wants[0]);
    demands.push_back(demands[0]);
    total += demands[0].count;
  }
  std::vector<BlockId> ids(total);
  std::vector<Generation> generations(total);
  const Urgency urgency = any_urgency();
  const Result<Grant> model = pool_.allocate(wants, urgency);
  const Result<std::int64_t> real = manager_.allocate_each(demands, ids, generations, urgency);
  expect_grant(real, model, ids, generations);
  if (failed() || !model) return;
  std::size_t next = 0;
  for (const Want& want : wants) {
    for (Outsider& outsider : outsiders_) {
      if (outsider.holder != want.holder) continue;
      for (std::int64_t i = 0; i < want.count; ++i) {
        outsider.handles.push_back(model->handles[next++]);
      }
    }
  }
}

void ModelDriver::expect_grant(const Result<std::int64_t>& real, const Result<Grant>& model,
                               std::span<const BlockId> ids,
                               std::span<const Generation> generations) {
  expect_status(real.status(), model.status(), "allocate");
  if (failed() || !model) return;
  expect_equal(*real, model->evicted, "evicted blocks");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    expect_equal(ids[i].value, model->handles[i].id.value, "an allocated id");
    expect_equal(generations[i].value, model->handles[i].generation.value, "its generation");
  }
  if (!std::ranges::equal(manager_.evicted(), pool_.evicted())) fail("evicted() differs");
}

void ModelDriver::retain_block() {
  Outsider* outsider = any_outsider();
  if (outsider == nullptr) return;
  std::vector<Handle> handles;
  for (std::uint64_t i = below(4) + 1; i > 0; --i) {
    const BlockId id = any_block();
    const bool exists = id.value >= 0 && id.value < game_.pool.num_blocks;
    const bool held_or_cached = exists && (pool_.state(id) == BlockState::referenced ||
                                           pool_.state(id) == BlockState::evictable);
    // A block without tokens is nothing to anyone but its sequence.
    if (exists && is_reserved(id)) continue;
    if (!held_or_cached && !one_in(10)) continue;
    Handle handle{id, exists ? pool_.generation(id) : Generation(0)};
    if (one_in(30)) handle.generation = Generation(handle.generation.value - 1);
    handles.push_back(handle);
  }
  if (!former_.empty() && one_in(20)) {
    const Handle old = former_[below(former_.size())];
    if (!is_reserved(old.id)) handles.push_back(old);
  }
  const Spans spans(handles);
  const Status predicted = pool_.retain(outsider->holder, handles);
  expect_status(manager_.retain(outsider->holder, spans.ids, spans.generations), predicted,
                "retain");
  if (!predicted) return;
  outsider->handles.insert(outsider->handles.end(), handles.begin(), handles.end());
}

void ModelDriver::release_handles() {
  Outsider* outsider = any_outsider();
  if (outsider == nullptr) return;
  const std::vector<Handle> handles = take_some(*outsider);
  const Spans spans(handles);
  const Status predicted = pool_.release(outsider->holder, handles);
  expect_status(manager_.release(outsider->holder, spans.ids, spans.generations), predicted,
                "release");
  if (!predicted) return fail("the model refuses to release what it handed out");
  outsider->handles.resize(outsider->handles.size() - handles.size());
  for (const Handle& handle : handles) forget(handle);
}

void ModelDriver::release_handles_after() {
  Outsider* outsider = any_outsider();
  if (outsider == nullptr) return;
  const std::vector<Handle> handles = take_some(*outsider);
  const Spans spans(handles);
  const Ticket ticket = any_ticket();
  const Status predicted = pool_.release_after(ticket, outsider->holder, handles);
  expect_status(manager_.release_after(ticket, outsider->holder, spans.ids, spans.generations),
                predicted, "release_after");
  if (!predicted) return;
  outsider->handles.resize(outsider->handles.size() - handles.size());
  for (const Handle& handle : handles) forget(handle);
}

void ModelDriver::misuse_handles() {
  Outsider* outsider = any_outsider();
  if (outsider == nullptr) return;
  std::vector<Handle> handles = take_some(*outsider);
  switch (below(4)) {
    case 0:  // the same reference twice
      if (!handles.empty()) handles.push_back(handles[below(handles.size())]);
      break;
    case 1:  // a reference given up before
      if (!former_.empty()) {
        handles.insert(handles.begin() + static_cast<std::ptrdiff_t>(below(handles.size() + 1)),
                       former_[below(former_.size())]);
      }
      break;
    case 2:  // more references than the holder has, of blocks that others hold
      handles = outsider->handles;
      for (const auto& [id, sequence] : naive_.sequences()) {
        if (!sequence.blocks.empty()) handles.push_back(sequence.blocks.front());
      }
      break;
    default:  // a block that does not exist
      handles.push_back({any_block(), Generation(static_cast<std::uint32_t>(random_()))});
      break;
  }
  // Two generations of one block in one call may be refused by either name.
  for (const Handle& a : handles) {
    for (const Handle& b : handles) {
      if (a.id == b.id && a.generation != b.generation) return;
    }
  }
  // A holder that gives up another's reference in place of its own cannot be told apart: the
  // manager keeps totals a holder, not a list. Only misuse that it promises to catch is tried.
  if (owns(*outsider, handles) || pool_.check_release(outsider->holder, handles)) return;
  const Spans spans(handles);
  if (one_in(2)) {
    expect_status(manager_.release(outsider->holder, spans.ids, spans.generations),
                  pool_.release(outsider->holder, handles), "release of a wrong handle");
  } else {
    const Ticket ticket = any_ticket();
    expect_status(manager_.release_after(ticket, outsider->holder, spans.ids, spans.generations),
                  pool_.release_after(ticket, outsider->holder, handles),
                  "release_after of a wrong handle");
  }
}

void ModelDriver::set_content() {
  Handle handle{any_block(), Generation(0)};
  if (handle.id.value >= 0 && handle.id.value < game_.pool.num_blocks) {
    handle.generation = pool_.generation(handle.id);
  }
  if (one_in(20)) handle.generation = Generation(handle.generation.value - 1);
  const BlockContent content =
      one_in(2) ? BlockContent::published : static_cast<BlockContent>(below(4));
  if (is_reserved(handle.id)) return;
  expect_status(manager_.set_content(handle.id, handle.generation, content),
                pool_.set_content(handle, content), "set_content");
}

/// Without priorities one of few such calls is made: it is refused.
void ModelDriver::set_retention() {
  if (game_.pool.eviction != EvictionPolicy::priority && !one_in(8)) return;
  Handle handle{any_block(), Generation(0)};
  if (handle.id.value >= 0 && handle.id.value < game_.pool.num_blocks) {
    handle.generation = pool_.generation(handle.id);
  }
  if (one_in(20)) handle.generation = Generation(handle.generation.value - 1);
  RetentionHint retention{.priority =
                              static_cast<std::int32_t>(below(RetentionHint::kMaxPriority + 1))};
  if (one_in(2)) retention.priority = static_cast<std::int32_t>(30 + below(8));
  if (one_in(40)) retention.priority = one_in(2) ? -1 : RetentionHint::kMaxPriority + 1;
  // Times of all sizes, so that every digit of the wheel is used.
  if (!one_in(3)) retention.expires_at = pool_.clock() + static_cast<std::int64_t>(far_below());
  if (one_in(20)) retention.expires_at = pool_.clock();
  if (one_in(40)) retention.expires_at = -1;
  expect_status(manager_.set_retention(handle.id, handle.generation, retention),
                pool_.set_retention(handle, retention), "set_retention");
}

void ModelDriver::advance_clock() {
  if (game_.pool.eviction != EvictionPolicy::priority && !one_in(8)) return;
  std::int64_t now = pool_.clock() + static_cast<std::int64_t>(far_below() / 4);
  if (one_in(20)) now = pool_.clock() - 1;
  expect_status(manager_.advance_clock(now), pool_.advance_clock(now), "advance_clock");
}

void ModelDriver::quarantine_block() {
  const BlockId id = any_block();
  const Result<bool> model = pool_.quarantine(id);
  const Result<bool> real = manager_.quarantine(id);
  expect_status(real.status(), model.status(), "quarantine");
  if (real && model) expect_equal(*real, *model, "quarantine");
}

void ModelDriver::restore_block() {
  BlockId id = any_block();
  for (std::int32_t i = 0; i < game_.pool.num_blocks && i < 200; ++i) {
    if (pool_.state(BlockId(i)) == BlockState::offline) id = BlockId(i);
  }
  expect_status(manager_.restore(id), pool_.restore(id), "restore");
}

void ModelDriver::open_ticket() {
  const Status predicted = pool_.can_open_ticket();
  const Result<Ticket> real = manager_.open_ticket();
  expect_status(real.status(), predicted, "open_ticket");
  if (real && predicted && !pool_.adopt_ticket(*real)) fail("a ticket came back");
}

void ModelDriver::retire_ticket() {
  const Ticket ticket = any_ticket();
  if (manager_.is_open(ticket) != pool_.is_open(ticket)) fail("is_open differs");
  expect_status(manager_.retire(ticket), pool_.retire(ticket), "retire");
}

void ModelDriver::ask_pool() {
  const auto requested =
      static_cast<std::int64_t>(below(static_cast<std::uint64_t>(game_.pool.num_blocks) + 4));
  const Urgency urgency = any_urgency();
  const Ticket ticket = any_ticket();
  expect_equal(manager_.available_after(ticket), pool_.available_after(ticket), "available_after");
  const std::int64_t usable = pool_.usable(urgency);
  expect_equal(manager_.can_allocate(requested, urgency), requested <= usable, "can_allocate");
  const Explanation explanation = manager_.explain(requested, urgency);
  const std::vector<Ticket> open = pool_.open_tickets();
  expect_equal(explanation.requested, requested, "explain.requested");
  expect_equal(explanation.usable, usable, "explain.usable");
  expect_equal(explanation.fits, requested <= usable, "explain.fits");
  expect_equal(explanation.missing, requested <= usable ? 0 : requested - pool_.left_for(urgency),
               "explain.missing");
  expect_equal(explanation.fenced_returning,
               pool_.available_after(pool_.newest_ticket()) - manager_.available_now(),
               "explain.fenced_returning");
  if (explanation.oldest_open_ticket != (open.empty() ? kNoTicket : open.front())) {
    fail("explain.oldest_open_ticket differs");
  }
}

}  // namespace kvarena::model
