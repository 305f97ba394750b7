//! Frames from either side: refused, or a message that says the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_ipc::message::{ClientMessage, Message, ServerMessage};

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

fuzz_target!(|data: &[u8]| {
    if let Some(ClientMessage::Generate { request, .. }) = again::<ClientMessage>(data) {
        let _ = request.validate();
    }
    again::<ServerMessage>(data);
});
