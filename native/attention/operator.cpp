// `trtdecode::PagedAttention` as an OpenVINO operator; the CPU plugin calls `evaluate` in its own threads' arena.
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>

#include "attention.h"

namespace {

using trtdecode::AttentionSpec;
using trtdecode::AttentionStep;

// Inputs: q, k, v, or one tensor of whose rows each takes its columns; where rotary_dim is not 0 angles [tokens,
// (1,) rotary_dim]; the cache; and `step`, whole numbers [n]: num_sequences, past_lens, query_begins, block_begins,
// block_indices. Few of them: for each OpenVINO spends 2 us a run, making a constant for shape inference.
class PagedAttention : public ov::op::Op {
  public:
    OPENVINO_OP("PagedAttention", "trtdecode");

    PagedAttention() = default;

    void validate_and_infer_types() override {
        const auto width = spec_.num_heads * spec_.head_dim;
        set_output_type(0, ov::element::f32, {get_input_partial_shape(0)[0], width});
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto clone = std::make_shared<PagedAttention>();
        clone->spec_ = spec_;
        clone->set_arguments(inputs);
        clone->validate_and_infer_types();
        return clone;
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("num_heads", spec_.num_heads);
        visitor.on_attribute("num_kv_heads", spec_.num_kv_heads);
        visitor.on_attribute("head_dim", spec_.head_dim);
        visitor.on_attribute("sliding_window", spec_.sliding_window);
        visitor.on_attribute("rotary_dim", spec_.rotary_dim);
        visitor.on_attribute("interleaved", spec_.interleaved);
        visitor.on_attribute("scale", spec_.scale);
        visitor.on_attribute("softcap", spec_.softcap);
        visitor.on_attribute("alibi_slopes", spec_.alibi_slopes);
        visitor.on_attribute("q_begin", spec_.q_begin);
        visitor.on_attribute("k_begin", spec_.k_begin);
        visitor.on_attribute("v_begin", spec_.v_begin);
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const size_t num_tokens = inputs[0].get_shape()[0];
        if (num_tokens == 0) return true;
        const auto rows = [&](size_t index) {
            const ov::Tensor& tensor = inputs[index];
            return trtdecode::Rows{tensor.data<const float>(), tensor.get_size() / num_tokens};
        };
        const bool is_packed = inputs.size() < 5;
        const ov::Tensor &cache = inputs[inputs.size() - 2], &numbers = inputs.back();
        AttentionStep step{};
        step.q = rows(0);
        step.k = rows(is_packed ? 0 : 1);
        step.v = rows(is_packed ? 0 : 2);
        if (spec_.rotary_dim) step.angles = rows(is_packed ? 1 : 3);
        step.cache = const_cast<void*>(cache.data());
        step.u8 = cache.get_element_type() == ov::element::u8;
        const int32_t* next = numbers.data<const int32_t>();
        step.num_sequences = static_cast<size_t>(*next++);
        step.past_lens = next;
        step.query_begins = next += step.num_sequences;
        step.block_begins = next += step.num_sequences + 1;
        step.block_indices = next + step.num_sequences + 1;
        outputs[0].set_shape({num_tokens, static_cast<size_t>(spec_.num_heads * spec_.head_dim)});
        step.out = outputs[0].data<float>();
        trtdecode::paged_attention(spec_, step);
        return true;
    }

  private:
    AttentionSpec spec_;
};

}  // namespace

OPENVINO_CREATE_EXTENSIONS(
    std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<PagedAttention>>()}));
