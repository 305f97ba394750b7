//! A ten-line agent: reads a screen a line, prints the next action for each.
//!
//! `tandemd --model M.gguf & cargo run -p tandem-sdk --example agent < screens.txt`

use tandem_sdk::{ChatMessage, Client, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schema = serde_json::json!({"type": "object", "required": ["action", "index"], "additionalProperties": false,
        "properties": {"action": {"enum": ["tap", "scroll", "back", "done"]}, "index": {"type": "integer"}}});
    let client = Client::connect_default()?;
    for screen in std::io::stdin().lines() {
        let rules = ChatMessage::system("Answer with the next action as JSON.");
        let request = Request::chat([rules, ChatMessage::user(screen?)]).schema(&schema);
        let answer = client.generate(request.max_tokens(48))?.answer()?;
        println!("{} ({} ms)", answer.text, answer.stats.ms);
    }
    Ok(())
}
