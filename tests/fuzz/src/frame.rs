//! Frames from either side: refused, or a message that says the same again.

use tandem_ipc::message::{ClientMessage, Message, ServerMessage};
use tandem_ipc::request::{GenerateRequest, Input};

/// Well-formed frames to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut request = GenerateRequest::new(Input::ChatJson("{\"messages\":[]}".into()));
    request.schema = Some("{\"type\":\"object\"}".into());
    request.stop = vec!["\n".into()];
    let client = [
        ClientMessage::Generate { id: 1, request: Box::new(request) },
        ClientMessage::Logits { id: 2, prompts: vec![vec![1, 2, 300_000]], all_positions: true },
        ClientMessage::Cancel { id: u64::MAX },
    ];
    let server = [
        ServerMessage::Accepted { id: 1, queue_position: 3 },
        ServerMessage::Token {
            id: 1,
            token: 9,
            text: "{".into(),
            top_logprobs: Some(vec![(9, "{".into(), -0.5)]),
        },
        ServerMessage::Status { id: 4, json: "{}".into() },
    ];
    client.iter().map(bytes).chain(server.iter().map(bytes)).collect()
}

fn bytes<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A message made here can be written.
    assert!(message.encode(&mut bytes).is_ok());
    bytes
}

fn again<M: Message>(data: &[u8]) -> Option<M> {
    let message = M::decode(data).ok()?;
    let (mut once, mut twice) = (Vec::new(), Vec::new());
    assert!(message.encode(&mut once).is_ok());
    let back = M::decode(&once);
    assert!(back.is_ok(), "its own bytes are refused");
    assert!(back.ok()?.encode(&mut twice).is_ok());
    assert_eq!(once, twice);
    Some(message)
}

/// One input.
pub fn run(data: &[u8]) {
    if let Some(ClientMessage::Generate { request, .. }) = again::<ClientMessage>(data) {
        let _ = request.validate();
    }
    again::<ServerMessage>(data);
}
