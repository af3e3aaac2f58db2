// A few threads that wait for rows. The caller works too, so one thread means no other thread at all.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace trtdecode {

class ThreadPool {
  public:
    explicit ThreadPool(size_t num_threads);  // the caller included; at least 1
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    size_t num_threads() const { return workers_.size() + 1; }

    // Calls work(item, thread) for every item in [0, num_items), thread in [0, num_threads()); returns when all are
    // done. `work` must not throw. One caller at a time.
    void run(size_t num_items, const std::function<void(size_t, size_t)>& work);

  private:
    void wait_for_work(size_t thread);
    void take_items(size_t thread);

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable started_, finished_;
    const std::function<void(size_t, size_t)>* work_ = nullptr;
    std::atomic<size_t> next_{0};
    size_t num_items_ = 0;
    size_t round_ = 0;
    size_t num_busy_ = 0;
    bool stopping_ = false;
};

}  // namespace trtdecode
