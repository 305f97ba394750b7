//! Between the messages of the rings and the engine's own types.

use tandem_engine::request::{EngineError, Finish, Input, Request};
use tandem_engine::sampler::SamplerOptions;
use tandem_ipc::message::{self, FailureCode, RequestId, ServerMessage};
use tandem_ipc::request::{self, GenerateRequest, LogprobsScope, Priority};

/// What a request is told while the device is down.
pub(super) fn down(why: &str) -> String {
    format!(
        "the device cannot be made to work ({why}); the daemon goes on trying, send the request again later"
    )
}

pub(super) fn failed(id: RequestId, code: FailureCode, message: String) -> ServerMessage {
    let retry_after_ms = code.is_retryable().then_some(500);
    ServerMessage::Failed { id, code, message, retry_after_ms }
}

pub(super) fn code(error: &EngineError) -> FailureCode {
    match error {
        EngineError::NoSlot(_) | EngineError::Fault => FailureCode::Internal,
        EngineError::SlotsFull { .. } => FailureCode::QuotaExceeded,
        EngineError::QueueFull { .. } => FailureCode::QueueFull,
        EngineError::PromptTooLong { .. } => FailureCode::PromptTooLong,
        EngineError::EmptyPrompt | EngineError::Template(_) => FailureCode::InvalidRequest,
        EngineError::Tokenizer(_) => FailureCode::InvalidToken,
        EngineError::Grammar(_) | EngineError::NothingAllowed { .. } => FailureCode::InvalidSchema,
        EngineError::StateBudget { .. } => FailureCode::QuotaExceeded,
        EngineError::Device(_) => FailureCode::DeviceFailed,
    }
}

/// The engine's form of a client's request.
pub(super) fn translate(body: &GenerateRequest) -> Result<Request, String> {
    let input = match &body.input {
        request::Input::Text(text) => Input::Text(text.clone()),
        request::Input::Tokens(ids) => Input::Tokens(ids.clone()),
        request::Input::ChatJson(text) => {
            let mut chat: serde_json::Value = serde_json::from_str(text).map_err(|e| {
                format!("the chat is no JSON: {e} (line {}, column {})", e.line(), e.column())
            })?;
            let messages = chat.get_mut("messages").map(serde_json::Value::take);
            let tools = chat.get_mut("tools").map(serde_json::Value::take);
            Input::Chat { messages: messages.ok_or("the chat has no \"messages\"")?, tools }
        }
    };
    let default = SamplerOptions::default();
    Ok(Request {
        input,
        schema: body.schema.clone(),
        max_tokens: body.max_tokens,
        sampling: SamplerOptions {
            temperature: body.temperature.unwrap_or(default.temperature),
            top_k: body.top_k.unwrap_or(default.top_k),
            top_p: body.top_p.unwrap_or(default.top_p),
            min_p: body.min_p.unwrap_or(default.min_p),
            repetition_penalty: body.repetition_penalty.unwrap_or(default.repetition_penalty),
            seed: body.seed.unwrap_or(default.seed),
        },
        stop: body.stop.clone(),
        top_logprobs: body.top_logprobs,
        first_logprobs_only: body.logprobs_scope == LogprobsScope::First,
        background: body.priority == Priority::Background,
        forced_answer: body.forced_answer.clone(),
        enable_thinking: body.enable_thinking,
    })
}

pub(super) fn finish_of(finish: Finish) -> message::Finish {
    match finish {
        Finish::Stop => message::Finish::Stop,
        Finish::Schema => message::Finish::Schema,
        Finish::Length => message::Finish::Length,
        Finish::Cancelled => message::Finish::Cancelled,
    }
}

pub(super) fn stats_of(stats: &tandem_engine::request::Stats) -> message::Stats {
    message::Stats {
        prompt: stats.prompt,
        shared: stats.shared,
        restored: stats.restored,
        new: stats.new,
        passes: stats.passes,
        saves: stats.saves,
        decode_tokens: stats.decode_tokens,
        decode_passes: stats.decode_passes,
        drafted: stats.drafted,
        accepted: stats.accepted,
        drafts: message::DraftsByKind {
            schema: counts_of(stats.drafts.schema),
            lookup: counts_of(stats.drafts.lookup),
            mtp: counts_of(stats.drafts.mtp),
        },
        prefill_ms: stats.prefill_ms,
        decode_ms: stats.decode_ms,
        ms: stats.ms,
    }
}

fn counts_of(counts: tandem_engine::request::DraftCounts) -> message::DraftCounts {
    message::DraftCounts { drafted: counts.drafted, accepted: counts.accepted }
}
