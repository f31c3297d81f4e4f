// Work shared between XLA's own threads: the one way in which native kernels run in parallel.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace jaxserve {

// Calls work(i) for every i from 0 to items - 1, in this thread and those of the pool, and returns when all calls have returned.
// `work` is copied, and may refer to anything that lives until this function returns.
//
// Each thread has a share of neighbouring items, and helps with the other shares when it is through: what neighbours read is mostly
// one stretch of memory, which comes a twentieth faster if no thread skips what another reads.
//
// XLA runs several such calls at once on one pool, so a helper may start late or never. Waiting for helpers would deadlock: what
// is waited for is the items, each of which is in the hands of a thread that runs, and helpers own the state that they share.
template <class Work>
void RunItems(xla::ffi::ThreadPool& pool, int64_t items, Work work) {
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };
  struct State {
    State(Work work, int64_t items, int64_t threads) : work(std::move(work)), shares(threads) {
      for (int64_t i = 0; i < threads; ++i) {
        shares[i].next = i * items / threads;
        shares[i].end = (i + 1) * items / threads;
      }
    }
    Work work;
    std::vector<Share> shares;
    std::atomic<size_t> threads{0};
    std::atomic<int64_t> done{0};
  };
  const int64_t threads = std::max<int64_t>(std::min<int64_t>(pool.num_threads(), items), 1);
  auto state = std::make_shared<State>(std::move(work), items, threads);
  auto run = [state] {
    const size_t mine = state->threads.fetch_add(1, std::memory_order_relaxed), count = state->shares.size();
    for (size_t i = 0; i < count; ++i) {
      Share& share = state->shares[(mine + i) % count];
      for (int64_t item; (item = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
        state->work(item);
        state->done.fetch_add(1, std::memory_order_release);
      }
    }
  };
  for (int64_t helper = 1; helper < threads; ++helper) pool.Schedule(std::function<void()>(run));
  run();
  for (int spins = 0; state->done.load(std::memory_order_acquire) < items; ++spins)
    if (spins > 1000) std::this_thread::yield();  // its thread may be waiting for this core
}

// The same, all in this thread where the work is `small`: done sooner than another thread is awake.
template <class Work>
void RunWork(xla::ffi::ThreadPool& pool, bool small, int64_t items, const Work& work) {
  if (!small) return RunItems(pool, items, work);
  for (int64_t item = 0; item < items; ++item) work(item);
}

}  // namespace jaxserve
