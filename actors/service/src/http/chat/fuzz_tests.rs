//! Requests of any content.

use std::time::Duration;

use actix_web::ResponseError;
use ragstone_env::Env;

use super::*;
use crate::fuzz::fuzz;
use crate::http::error::Refusal;

const LIMIT: Duration = Duration::from_secs(120);

/// The fields of a chat, in the order in which they are taken.
fn take(body: &[u8]) -> Result<(Generation, Vec<ChatMessage>)> {
    let mut fields = Fields::parse(body)?;
    check_model(&mut fields, "m")?;
    let mut generation = Generation::take_within(LIMIT, &mut fields, &Env::seeded(1, 0), 256, &Default::default())?;
    check_answers(&generation)?;
    generation.sampling.logprobs = logprobs(&mut fields)?;
    fields.ignore(&["tools", "tool_choice", "parallel_tool_calls"]);
    let messages = fields.need::<Vec<RequestMessage>>("messages")?;
    let messages = conversation(&mut fields, messages)?;
    fields.finish()?;
    Ok((generation, messages))
}

/// Understood within its bounds, or refused as the caller's fault, with a message for people.
fn holds(body: &[u8]) -> bool {
    match take(body) {
        Ok((generation, messages)) => {
            let sampling = &generation.sampling;
            assert!(generation.deadline <= LIMIT && !generation.deadline.is_zero());
            assert!(sampling.temperature.is_finite() && (0.0..=1.0).contains(&sampling.top_p));
            assert!(sampling.max_tokens > 0 && sampling.stop.iter().all(|stop| !stop.is_empty()));
            assert!(messages.iter().all(|message| ["system", "user", "assistant", "tool"].contains(&&*message.role)));
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let refusal = Refusal(error);
            assert!(refusal.status_code().is_client_error(), "{refusal:?}");
            false
        }
    }
}

#[test]
fn any_request_is_understood_or_refused_as_the_callers_fault() {
    let seeds = [
        r#"{"model":"m","messages":[{"role":"user","content":"Whose boats?"}],"max_tokens":5,"temperature":0.5}"#,
        r#"{"messages":[{"role":"system","content":[{"type":"text","text":"a"}]},{"role":"user","content":"b"}],
            "top_p":0.9,"top_k":40,"seed":-7,"stop":["x","\n\n"],"stream":true,"stream_options":{"include_usage":true},
            "logprobs":true,"top_logprobs":5,"n":1,"tools":[],"user":"u","response_format":{"type":"text"}}"#,
        r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"7"}],"max_completion_tokens":9,"stop":"x",
            "ragstone":{"collection":"c","top_k":3,"documents":[{"title":"t","text":"d"}],"reuse":{"ratio":0.15},
            "tenant":"t","deadline_s":5}}"#,
        r#"{"messages":[],"ragstone":{"reuse":"exact"}}"#,
        r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"continue_final_message":true,
            "add_generation_prompt":false,"prompt_logprobs":2}"#,
    ];
    fuzz("chat request", &seeds.map(|seed| seed.as_bytes().to_vec()), holds);
}
