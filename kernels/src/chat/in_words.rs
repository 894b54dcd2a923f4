//! Tools for models whose chat template knows none: they are described in the system prompt, and calls and what tools said stand in the
//! conversation as text, in Hermes' form ([`super::calls::CallForm::Hermes`]).

use serde_json::{Value, json};

use super::ChatMessage;

const RULES: &str = "You may call functions. To call one, write nothing but\n<tool_call>\n{\"name\": NAME, \"arguments\": {…}}\n</tool_call>\nonce for each \
                     call. What it returns comes back in <tool_response>. The functions:";

/// The conversation as a template takes it that knows no tools; unchanged where there are none in it.
pub fn in_words(messages: Vec<ChatMessage>, tools: &[Value]) -> Vec<ChatMessage> {
    let mut said: Vec<ChatMessage> = Vec::with_capacity(messages.len() + 1);
    // Whether the last message is what tools said: what follows goes into the same turn, as templates want turns to alternate.
    let mut is_open = false;
    for message in messages {
        let is_tool = message.role == "tool";
        let text = match &message {
            ChatMessage { role, content, .. } if role == "tool" => {
                format!("<tool_response>\n{content}\n</tool_response>")
            }
            ChatMessage { content, tool_calls, .. } => with_calls(content, tool_calls),
        };
        let role = if is_tool { "user".to_owned() } else { message.role };
        match said.last_mut().filter(|last| is_open && last.role == role) {
            Some(last) => {
                last.content.push('\n');
                last.content.push_str(&text);
            }
            None => said.push(ChatMessage::new(role, text)),
        }
        is_open = is_tool;
    }
    if !tools.is_empty() {
        let text = described(tools);
        match said.first_mut().filter(|first| first.role == "system") {
            Some(first) => first.content = format!("{}\n\n{text}", first.content),
            None => said.insert(0, ChatMessage::new("system", text)),
        }
    }
    said
}

fn described(tools: &[Value]) -> String {
    let lines: Vec<String> = tools.iter().map(|tool| tool["function"].to_string()).collect();
    format!("{RULES}\n{}", lines.join("\n"))
}

fn with_calls(content: &str, calls: &[Value]) -> String {
    let call = |call: &Value| {
        let function = &call["function"];
        let call = json!({ "name": function["name"], "arguments": function["arguments"] });
        format!("<tool_call>\n{call}\n</tool_call>")
    };
    let parts = [content.to_owned()].into_iter().filter(|content| !content.is_empty() || calls.is_empty());
    parts.chain(calls.iter().map(call)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_calls_and_results_become_text() {
        let tool = json!({ "type": "function", "function": { "name": "find", "parameters": { "type": "object" } } });
        let call =
            json!({ "id": "a", "type": "function", "function": { "name": "find", "arguments": { "town": "Oslo" } } });
        let messages = vec![
            ChatMessage::new("system", "Be brief."),
            ChatMessage::new("user", "Where?"),
            ChatMessage { tool_calls: vec![call.clone(), call], ..ChatMessage::new("assistant", "I look.") },
            ChatMessage { tool_call_id: Some("a".into()), ..ChatMessage::new("tool", "here") },
            ChatMessage { tool_call_id: Some("a".into()), ..ChatMessage::new("tool", "there") },
            ChatMessage::new("user", "And?"),
            ChatMessage::new("user", "Well?"),
        ];
        let said = in_words(messages, std::slice::from_ref(&tool));
        let roles: Vec<&str> = said.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user", "user"]);
        assert!(
            said[0].content.starts_with("Be brief.\n\nYou may call functions.")
                && said[0].content.contains(r#""name":"find""#)
        );
        let called = "<tool_call>\n{\"name\":\"find\",\"arguments\":{\"town\":\"Oslo\"}}\n</tool_call>";
        assert_eq!(said[2].content, format!("I look.\n{called}\n{called}"));
        assert!(said[2].tool_calls.is_empty());
        assert_eq!(
            said[3].content,
            "<tool_response>\nhere\n</tool_response>\n<tool_response>\nthere\n</tool_response>\nAnd?"
        );
        // Without tools and calls nothing changes; without a system prompt there is one.
        let plain = vec![ChatMessage::new("user", "a"), ChatMessage::new("assistant", "")];
        assert_eq!(in_words(plain.clone(), &[]), plain);
        assert_eq!(in_words(plain, &[tool])[0].role, "system");
    }
}
