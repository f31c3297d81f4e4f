// Work shared between XLA's own threads: the one way in which native kernels run in parallel.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace jaxserve {

// Calls work(i) for every i from 0 to items - 1, in this thread and those of the pool, and returns when all calls have returned.
// `work` is copied, and may refer to anything that lives until this function returns.
//
// XLA runs several such calls at once on one pool, so a helper may start late or never. Waiting for helpers would deadlock: what
// is waited for is the items, each of which is in the hands of a thread that runs, and helpers own the state that they share.
template <class Work>
void RunItems(xla::ffi::ThreadPool& pool, int64_t items, Work work) {
  struct State {
    explicit State(Work work) : work(std::move(work)) {}
    Work work;
    std::atomic<int64_t> next{0}, done{0};
  };
  auto state = std::make_shared<State>(std::move(work));
  auto run = [state, items] {
    for (int64_t i; (i = state->next.fetch_add(1, std::memory_order_relaxed)) < items;) {
      state->work(i);
      state->done.fetch_add(1, std::memory_order_release);
    }
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), items) - 1;
  for (int64_t helper = 0; helper < helpers; ++helper) pool.Schedule(std::function<void()>(run));
  run();
  for (int spins = 0; state->done.load(std::memory_order_acquire) < items; ++spins)
    if (spins > 1000) std::this_thread::yield();  // its thread may be waiting for this core
}

}  // namespace jaxserve
