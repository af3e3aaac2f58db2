// The Python module trtdecode.sampling._native; sampling/native.py is its only user.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "sampler.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace trtdecode {
namespace {

template <typename T>
using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T, size_t N>
using Output = nb::ndarray<nb::numpy, T, nb::ndim<N>>;
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A request's choice, and its edits of the next row. Keeps the arrays that it was given alive.
struct RowTask {
    Choice choice;
    Edits edits;
    bool has_edits = false;
    Array1<int32_t> bias_ids, banned_ids, seen_ids, seen_counts;
    Array1<float> bias_values;
    Array1<uint32_t> mask;

    void set_bias(Array1<int32_t> ids, Array1<float> values) {
        if (ids.size() != values.size()) throw std::invalid_argument("bias ids and values differ in length");
        bias_ids = ids;
        bias_values = values;
        edits.bias_ids = {ids.data(), ids.size()};
        edits.bias_values = {values.data(), values.size()};
        has_edits = true;
    }

    void set_edits(Array1<int32_t> banned, std::optional<Array1<uint32_t>> allowed, Array1<int32_t> seen,
                   Array1<int32_t> counts) {
        if (seen.size() != counts.size()) throw std::invalid_argument("seen ids and counts differ in length");
        banned_ids = banned;
        seen_ids = seen;
        seen_counts = counts;
        edits.banned_ids = {banned.data(), banned.size()};
        edits.seen_ids = {seen.data(), seen.size()};
        edits.seen_counts = {counts.data(), counts.size()};
        edits.mask = {};
        if (allowed) {
            mask = *allowed;
            edits.mask = {mask.data(), mask.size()};
        }
        has_edits = true;
    }

    void check(size_t vocab_size) const {
        check_ids("logit_bias", edits.bias_ids, vocab_size);
        check_ids("banned", edits.banned_ids, vocab_size);
        check_ids("seen", edits.seen_ids, vocab_size);
    }

    static void check_ids(const char* what, Span<int32_t> ids, size_t vocab_size) {
        for (size_t i = 0; i < ids.size; ++i) {
            if (ids.data[i] < 0 || static_cast<size_t>(ids.data[i]) >= vocab_size) {
                throw std::out_of_range(std::string(what) + ": token id " + std::to_string(ids.data[i]) +
                                        " is not below the vocabulary size " + std::to_string(vocab_size));
            }
        }
    }
};

template <typename T, size_t N>
Output<T, N> new_array(std::initializer_list<size_t> shape) {
    size_t size = 1;
    for (size_t extent : shape) size *= extent;
    T* data = new T[size]();
    nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<T*>(pointer); });
    return Output<T, N>(data, shape, owner);
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const Kernels* kernels : runnable_kernels()) names.emplace_back(kernels->name);
    return names;
}

// An empty name: the fastest.
const Kernels& find_kernels(const std::string& name) {
    for (const Kernels* kernels : runnable_kernels()) {
        if (name.empty() || name == kernels->name) return *kernels;
    }
    throw std::invalid_argument("no kernels '" + name + "' that this CPU can run; see kernel_names()");
}

class NativeSampler {
  public:
    NativeSampler(size_t num_threads, const std::string& kernels)
        : kernels_(find_kernels(kernels)), pool_(num_threads), scratches_(pool_.num_threads(), Scratch(kernels_)) {}

    size_t num_threads() const { return pool_.num_threads(); }
    std::string kernels() const { return kernels_.name; }

    Output<int32_t, 1> choose(Logits logits, Array1<int32_t> rows, const std::vector<const RowTask*>& tasks,
                              Array1<int64_t> positions) {
        const size_t size = logits.shape(1);
        check_rows(logits, rows);
        if (tasks.size() != rows.size() || positions.size() != rows.size()) {
            throw std::invalid_argument("rows, tasks and positions differ in length");
        }
        for (const RowTask* task : tasks) task->check(size);
        auto chosen = new_array<int32_t, 1>({rows.size()});
        int32_t* out = chosen.data();
        {
            nb::gil_scoped_release release;
            pool_.run(rows.size(), [&](size_t item, size_t thread) {
                const RowTask& task = *tasks[item];
                const float* row = row_of(logits, rows, item);
                const Edits* edits = task.has_edits ? &task.edits : nullptr;
                const auto position = static_cast<uint32_t>(positions.data()[item]);
                scratches_[thread].expect(row_of(logits, rows, item + pool_.num_threads()));
                out[item] = scratches_[thread].choose(row, size, task.choice, edits, position);
            });
        }
        return chosen;
    }

    nb::tuple logprobs(Logits logits, Array1<int32_t> rows, Array1<int32_t> token_ids, size_t num_top) {
        const size_t size = logits.shape(1), count = rows.size();
        check_rows(logits, rows);
        if (token_ids.size() != count) throw std::invalid_argument("rows and token_ids differ in length");
        RowTask::check_ids("token_ids", {token_ids.data(), count}, size);
        auto chosen = new_array<double, 1>({count});
        auto ranks = new_array<int32_t, 1>({count});
        auto top_ids = new_array<int32_t, 2>({count, num_top});
        auto top = new_array<double, 2>({count, num_top});
        {
            nb::gil_scoped_release release;
            pool_.run(count, [&](size_t item, size_t thread) {
                const float* row = row_of(logits, rows, item);
                scratches_[thread].expect(row_of(logits, rows, item + pool_.num_threads()));
                const Logprob result =
                    scratches_[thread].logprobs(row, size, token_ids.data()[item], num_top,
                                                top_ids.data() + item * num_top, top.data() + item * num_top);
                chosen.data()[item] = result.logprob;
                ranks.data()[item] = result.rank;
            });
        }
        return nb::make_tuple(chosen, ranks, top_ids, top);
    }

  private:
    static void check_rows(const Logits& logits, const Array1<int32_t>& rows) {
        if (logits.shape(1) == 0) throw std::invalid_argument("logits have no columns");
        RowTask::check_ids("rows", {rows.data(), rows.size()}, logits.shape(0));
    }

    static const float* row_of(const Logits& logits, const Array1<int32_t>& rows, size_t item) {
        if (item >= rows.size()) return nullptr;
        return logits.data() + static_cast<size_t>(rows.data()[item]) * logits.shape(1);
    }

    const Kernels& kernels_;
    ThreadPool pool_;
    std::vector<Scratch> scratches_;
};

}  // namespace
}  // namespace trtdecode

NB_MODULE(_native, m) {
    using namespace trtdecode;
    m.attr("NO_TOKEN_LEFT") = kNoTokenLeft;
    m.attr("NOT_FINITE") = kNotFinite;
    m.def("kernel_names", &kernel_names);

    nb::class_<RowTask>(m, "RowTask")
        .def("__init__",
             [](RowTask* self, bool greedy, float temperature, float least, int64_t top_k, double top_p,
                float repetition, float frequency, float presence, uint64_t seed, uint32_t sample_index) {
                 new (self) RowTask();
                 self->choice = {greedy,    temperature, least,    top_k, top_p, repetition,
                                 frequency, presence,    seed,     sample_index};
             },
             "greedy"_a, "temperature"_a, "least"_a, "top_k"_a, "top_p"_a, "repetition"_a, "frequency"_a,
             "presence"_a, "seed"_a, "sample_index"_a)
        .def("set_bias", &RowTask::set_bias, "ids"_a, "values"_a)
        .def("set_edits", &RowTask::set_edits, "banned_ids"_a, "mask"_a.none(), "seen_ids"_a, "seen_counts"_a);

    nb::class_<NativeSampler>(m, "NativeSampler")
        .def(nb::init<size_t, const std::string&>(), "num_threads"_a, "kernels"_a = "")
        .def_prop_ro("kernels", &NativeSampler::kernels)
        .def_prop_ro("num_threads", &NativeSampler::num_threads)
        .def("choose", &NativeSampler::choose, "logits"_a, "rows"_a, "tasks"_a, "positions"_a)
        .def("logprobs", &NativeSampler::logprobs, "logits"_a, "rows"_a, "token_ids"_a, "num_top"_a);
}
