#pragma once

/// @file
/// A trace read from first to last.

#include "support/test_files.hpp"
#include "trace/trace_reader.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvarena::test {

/// The requests before the first defect, and the defect.
struct Reading {
  std::vector<trace::TraceRequest> requests;
  Status status;
  Finding failure;
  trace::TraceFormat format = trace::TraceFormat::detect;
};

inline Reading read_all(std::string_view content,
                        trace::TraceFormat format = trace::TraceFormat::detect,
                        std::size_t max_line_bytes = 8 << 20, std::string_view salt_column = {}) {
  const TempFile file(content);
  Reading reading;
  auto reader = trace::TraceReader::open({.path = file.path(),
                                          .format = format,
                                          .max_line_bytes = max_line_bytes,
                                          .salt_column = std::string(salt_column)},
                                         &reading.failure);
  if (!reader) {
    reading.status = reader.status();
    return reading;
  }
  reading.format = reader->format();
  while (true) {
    auto request = reader->next();
    if (!request) {
      reading.status = request.status();
      reading.failure = reader->failure();
      EXPECT_EQ(reader->next().status(), reading.status) << "the answer repeats";
      return reading;
    }
    if (!request->has_value()) return reading;
    reading.requests.push_back(std::move(**request));
  }
}

}  // namespace kvarena::test
