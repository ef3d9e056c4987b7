// Kernels for engines with block tables of their own.

#include <array>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "device.hpp"
#include "layer_args.hpp"
#include "planes.hpp"
#include "records.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace kvarena::python {

namespace {

/// What a schedule leaves for the calls that follow it.
struct Scheduled {
  bool is_made = false;
  std::int64_t total_q = 0;
  std::vector<std::int64_t> row_offsets;  ///< on the host, when the caller gave none
  std::vector<std::int32_t> lengths;      ///< on the host, with 0 for rows that are skipped
  std::vector<nb::object> held;           ///< arrays of the rows, until the next schedule
};

/// A handle of kernels.
struct Kernels {
  kvarena_kernels* open = nullptr;  ///< null: closed
  std::shared_ptr<Device> device;
  kvarena_kernels_options options{};   ///< with the dimensions that 0 stands for filled in
  std::array<Scheduled, 2> scheduled;  ///< without and with the window
  std::uint64_t schedules = 0;         ///< how many there were

  ~Kernels() {
    if (open != nullptr) at_end(kvarena_kernels_release, open);
  }
  /// Returns the handle. Raises kvarena.FailedPrecondition after close.
  kvarena_kernels* handle() const {
    if (open == nullptr) raise_closed("the kernels are closed");
    return open;
  }
  void check(const kvarena_status& status) const { python::check(status, {.kernels = true}); }
};

std::shared_ptr<Kernels> create_kernels(const std::shared_ptr<Device>& device, nb::handle given) {
  auto kernels = std::make_shared<Kernels>();
  kernels->device = device;
  auto& options = kernels->options = sized<kvarena_kernels_options>();
  read_members(given, options);
  options.dtype = dtype_of(given.attr("dtype"));
  options.tile_order =
      number_of("tile_order", nb::cast<std::string>(given.attr("tile_order")), kTileOrders);
  if (options.tile_order == KVARENA_TILE_BEST) options.tile_order = KVARENA_TILE_ROWS;
  if (options.head_dim_v == 0) options.head_dim_v = options.head_dim_k;
  if (options.block_size_tokens == 0) options.block_size_tokens = 16;
  kernels->check(without_gil(kvarena_kernels_create, device->handle(), &options, &kernels->open));
  return kernels;
}

void close(Kernels& kernels) {
  if (kernels.open == nullptr) return;
  kvarena_kernels* const last = std::exchange(kernels.open, nullptr);
  const kvarena_status status = without_gil(kvarena_kernels_release, last);
  if (status.code != KVARENA_OK) kernels.open = last;
  kernels.check(status);
  const auto no_longer_held = std::exchange(kernels.scheduled, {});
}

/// The arrays of a step's rows.
struct Rows {
  nb::handle tables;
  nb::handle lengths;
  nb::handle q_offsets;
  nb::handle row_slots;
  nb::handle row_offsets;
};

template <class Item>
const Item* items_of(const Tensor& tensor) {
  return static_cast<const Item*>(tensor.data());
}

/// Takes a dense array of `count` numbers; None is null.
template <class Item>
const Item* take_array(std::optional<Tensor>& taken, std::string_view argument, nb::handle object,
                       const Place& place, dlpack::DataType dtype, std::int64_t count,
                       std::string_view form) {
  if (object.is_none()) return nullptr;
  taken.emplace(argument, object, place);
  taken->require_dtype(dtype);
  taken->require_shape({count}, form);
  taken->require_dense(0, "adjacent numbers");
  return items_of<Item>(*taken);
}

/// Finds the tables of a step's rows as the GPU does: by `row_slots`, where -1 skips a row, else
/// row r has table r. The host's code has offsets and lengths alone, so that a skipped row has
/// length 0.
void find_tables(kvarena_tables& given, std::int64_t num_tables, Scheduled& next) {
  const auto rows = static_cast<std::size_t>(given.num_rows);
  const bool has_offsets = given.row_offsets != nullptr;
  next.row_offsets.assign(has_offsets ? 0 : rows, 0);
  next.lengths.assign(given.lengths, given.lengths + rows);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::int64_t slot =
        given.row_slots != nullptr ? given.row_slots[r] : static_cast<std::int64_t>(r);
    const std::int64_t new_tokens = given.q_offsets[r + 1] - given.q_offsets[r];
    if (slot == -1 && new_tokens == 0) {
      next.lengths[r] = 0;
      continue;
    }
    if (given.row_slots == nullptr && has_offsets) continue;
    if (slot < 0 || slot >= num_tables) {
      const bool is_skipped = slot == -1;
      const std::string argument =
          given.row_slots == nullptr ? "tables" : "row_slots[" + std::to_string(r) + "]";
      raise_value(argument, is_skipped ? "-1 for a row with new tokens" : std::to_string(slot),
                  "0 .. " + std::to_string(num_tables - 1) + ", a row of `tables`" +
                      (is_skipped ? "; on the host -1 skips rows without new tokens" : ""));
    }
    if (!has_offsets) next.row_offsets[r] = slot * given.table_stride;
  }
  given.lengths = next.lengths.data();
  if (!has_offsets) given.row_offsets = next.row_offsets.data();
}

/// Raises ValueError unless there is a number for each row, none of them negative.
void require_counts(const char* name, const std::vector<std::int32_t>& given, std::int64_t rows) {
  if (given.size() != static_cast<std::size_t>(rows)) {
    raise_value(name, std::to_string(given.size()) + " entries",
                "one for each of the " + std::to_string(rows) + " lengths");
  }
  for (const std::int32_t count : given) {
    if (count < 0) raise_value(name, std::to_string(count), "0 or more for each length");
  }
}

/// The counts of new tokens by row: as given, or one each.
std::vector<std::int32_t> counts_of(std::optional<std::vector<std::int32_t>> given,
                                    std::int64_t rows) {
  if (!given) return std::vector<std::int32_t>(static_cast<std::size_t>(rows), 1);
  require_counts("query_tokens", *given, rows);
  return std::move(*given);
}

/// Raises ValueError unless the blocks of each length lie in one row of the tables. On the host.
void require_tables(const kvarena_tables& given, const Tensor& tables, std::int64_t block_size) {
  const std::int64_t width = tables.shape(1);
  const std::int64_t entries =
      tables.shape(0) == 0 ? 0 : (tables.shape(0) - 1) * given.table_stride + width;
  for (std::int32_t r = 0; r < given.num_rows; ++r) {
    const std::int64_t length = given.lengths[r];
    const std::string row = "[" + std::to_string(r) + "]";
    if (length < 0 || length > width * block_size) {
      raise_value("lengths" + row, std::to_string(length) + " tokens",
                  "0 .. " + std::to_string(width * block_size) + ", what a row of `tables` has");
    }
    const std::int64_t first = given.row_offsets[r];
    const std::int64_t last = first + (length + block_size - 1) / block_size;
    if (length > 0 && (first < 0 || last > entries)) {
      raise_value("row_offsets" + row, std::to_string(first),
                  "0 .. the place in `tables` from which the blocks of the row fit");
    }
  }
}

/// Refuses what CUDA needs and is not there; on the host, finds and checks the rows' tables.
void complete(kvarena_tables& given, const Tensor& tables, const Kernels& kernels,
              Scheduled& next) {
  if (!kernels.device->is_cuda) {
    find_tables(given, tables.shape(0), next);
    require_tables(given, tables, kernels.options.block_size_tokens);
    return;
  }
  if (given.row_offsets == nullptr) {
    raise_value("row_offsets", "None", "a tensor: where the table of each length begins");
  }
  if (given.row_slots == nullptr) {
    raise_value("row_slots", "None", "a tensor: the row of `tables` of each length; -1: skip");
  }
}

void schedule(Kernels& kernels, nb::handle tables, nb::handle lengths, nb::handle q_offsets,
              nb::handle row_slots, nb::handle row_offsets,
              std::optional<std::vector<std::int32_t>> query_tokens,
              const std::optional<std::vector<std::int32_t>>& host_lengths, bool windowed,
              bool shares_prefixes, nb::handle stream) {
  void* const queue = chosen_stream(*kernels.device, stream);
  const Place place = kernels.device->place(queue);
  const Tensor table_rows("tables", tables, place);
  table_rows.require_dtype(kInt32);
  if (table_rows.ndim() != 2) {
    raise_value("tables", std::to_string(table_rows.ndim()) + " dimensions", "[rows, entries]");
  }
  table_rows.require_dense(1, "rows of adjacent entries");
  if (q_offsets.is_none()) raise_type("q_offsets", "None", "a tensor [rows + 1]");
  std::optional<Tensor> length_array, offset_array, slot_array, start_array;
  const Tensor sizes("lengths", lengths, place);
  const std::int64_t rows = sizes.ndim() == 1 ? sizes.shape(0) : 0;

  auto given = sized<kvarena_tables>();
  given.tables = items_of<std::int32_t>(table_rows);
  given.table_stride = table_rows.stride_bytes(0) / 4;
  given.num_rows = static_cast<std::int32_t>(rows);
  given.lengths =
      take_array<std::int32_t>(length_array, "lengths", lengths, place, kInt32, rows, "[rows]");
  given.q_offsets = take_array<std::int64_t>(offset_array, "q_offsets", q_offsets, place, kInt64,
                                             rows + 1, "[rows + 1]");
  given.row_slots =
      take_array<std::int32_t>(slot_array, "row_slots", row_slots, place, kInt32, rows, "[rows]");
  given.row_offsets = take_array<std::int64_t>(start_array, "row_offsets", row_offsets, place,
                                               kInt64, rows, "[rows]");
  const std::vector<std::int32_t> counts = counts_of(std::move(query_tokens), rows);
  given.query_tokens = counts.data();
  given.total_q = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  given.shares_prefixes = shares_prefixes ? 1 : 0;
  if (host_lengths) {
    require_counts("host_lengths", *host_lengths, rows);
    given.host_lengths = host_lengths->data();
  }

  Scheduled next;
  next.is_made = true;
  next.total_q = given.total_q;
  complete(given, table_rows, kernels, next);
  kernels.check(
      without_gil(kvarena_kernels_schedule, kernels.handle(), &given, windowed ? 1 : 0, queue));
  for (const nb::handle array : {tables, lengths, q_offsets, row_slots, row_offsets}) {
    next.held.push_back(nb::borrow(array));
  }
  ++kernels.schedules;
  // The end of what was held may run Python code.
  const Scheduled last = std::exchange(kernels.scheduled[windowed ? 1 : 0], std::move(next));
}

void write(Kernels& kernels, nb::handle layer_view, nb::handle slots, nb::handle key,
           nb::handle value, nb::handle key_scale, nb::handle value_scale, bool overlap,
           nb::handle stream) {
  void* const queue = chosen_stream(*kernels.device, stream);
  const Place place = kernels.device->place(queue);
  const LayerPlanes planes(kernels.options, layer_view, place);
  planes.key_tensor.require_writable();
  planes.value_tensor.require_writable();
  const Tensor places("slots", slots, place);
  places.require_dtype(kInt64);
  const std::int64_t tokens = places.ndim() == 1 ? places.shape(0) : 0;
  places.require_shape({tokens}, "[num_tokens]");
  places.require_dense(0, "adjacent slots");
  const WriteCall call(LayerShape::of(kernels.options), tokens, place, 0, key, value, key_scale,
                       value_scale);
  kernels.check(without_gil(kvarena_kernels_write, kernels.handle(), &planes.key, &planes.value,
                            items_of<std::int64_t>(places), tokens, &call.args, overlap ? 1 : 0,
                            queue));
}

nb::object attend(Kernels& kernels, nb::handle layer_view, nb::handle q, nb::handle out,
                  double scale, bool windowed, double soft_cap, nb::handle lse, nb::handle sinks,
                  nb::handle tree_mask, nb::handle key_scale, nb::handle value_scale, bool overlap,
                  nb::handle stream) {
  void* const queue = chosen_stream(*kernels.device, stream);
  const Place place = kernels.device->place(queue);
  const Scheduled& made = kernels.scheduled[windowed ? 1 : 0];
  if (!made.is_made) raise_order("attend needs a schedule with the same `windowed` before it");
  const std::uint64_t schedules = kernels.schedules;
  const LayerPlanes planes(kernels.options, layer_view, place);
  AttendCall call(LayerShape::of(kernels.options), made.total_q, place,
                  {0, scale, soft_cap, windowed, true},
                  {q, out, lse, sinks, tree_mask, key_scale, value_scale});
  kvarena_kernels* const handle = kernels.handle();
  // Python code, and other threads with it, may run while tensors are read.
  if (kernels.schedules != schedules) {
    raise_order("the schedule was changed while the arguments of this call were read");
  }
  kernels.check(without_gil(kvarena_kernels_attend, handle, &planes.key, &planes.value, &call.args,
                            overlap ? 1 : 0, queue));
  return call.result;
}

std::int64_t workspace_bytes(const Kernels& kernels) {
  std::int64_t bytes = 0;
  kernels.check(kvarena_kernels_workspace_bytes(kernels.handle(), &bytes));
  return bytes;
}

void check_tables(Kernels& kernels, bool windowed, nb::handle stream) {
  void* const queue = chosen_stream(*kernels.device, stream);
  kernels.check(
      without_gil(kvarena_kernels_check_tables, kernels.handle(), windowed ? 1 : 0, queue));
}

}  // namespace

void bind_kernels(nb::module_& module) {
  nb::class_<Kernels>(module, "Kernels")
      .def(nb::new_(&create_kernels), nb::arg("device"), nb::arg("options"))
      .def("close", &close)
      .def("schedule", &schedule, nb::arg("tables"), nb::arg("lengths"), nb::arg("q_offsets"),
           nb::kw_only(), nb::arg("row_slots") = nb::none(), nb::arg("row_offsets") = nb::none(),
           nb::arg("query_tokens") = nb::none(), nb::arg("host_lengths") = nb::none(),
           nb::arg("windowed") = false, nb::arg("shares_prefixes") = false,
           nb::arg("stream") = nb::none())
      .def("write", &write, nb::arg("layer_view"), nb::arg("slots"), nb::arg("key"),
           nb::arg("value").none(), nb::kw_only(), nb::arg("key_scale") = nb::none(),
           nb::arg("value_scale") = nb::none(), nb::arg("overlap") = false,
           nb::arg("stream") = nb::none())
      .def("attend", &attend, nb::arg("layer_view"), nb::arg("q"), nb::kw_only(),
           nb::arg("out") = nb::none(), nb::arg("scale") = 0.0, nb::arg("windowed") = false,
           nb::arg("soft_cap") = 0.0, nb::arg("lse") = nb::none(), nb::arg("sinks") = nb::none(),
           nb::arg("tree_mask") = nb::none(), nb::arg("key_scale") = nb::none(),
           nb::arg("value_scale") = nb::none(), nb::arg("overlap") = false,
           nb::arg("stream") = nb::none())
      .def("check_tables", &check_tables, nb::kw_only(), nb::arg("windowed") = false,
           nb::arg("stream") = nb::none())
      .def_prop_ro("workspace_bytes", &workspace_bytes);
}

}  // namespace kvarena::python
