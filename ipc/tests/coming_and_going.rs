//! What clients that leave leave behind: nothing. Alone in its file, because it
//! counts this process's descriptors and mappings.

// A failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

mod echo;

use std::time::Duration;

use echo::{EchoConfig, EchoDaemon, Seen};
use tandem_ipc::client::Connection;
use tandem_ipc::message::{ClientMessage, ServerMessage};
use tandem_ipc::request::{GenerateRequest, Input};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Open descriptors, and mappings of regions.
fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let regions = maps.lines().filter(|line| line.contains("/memfd:tandem-"));
    (descriptors, regions.count())
}

#[test]
fn a_thousand_clients_leave_nothing_behind_and_one_that_waits_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let mut waiting = Connection::connect(&daemon.path, "waiting", TIMEOUT).unwrap();
    let request = Box::new(GenerateRequest::new(Input::Text("hold".into())));
    waiting.send(&ClientMessage::Generate { id: 7, request }).unwrap();
    assert!(matches!(waiting.recv_wait(Some(TIMEOUT)).unwrap(), Some(ServerMessage::Accepted { id: 7, .. })));
    let before = held();
    assert_eq!(before.1, 4, "two regions, mapped by each side");

    for guest in 0..1000u64 {
        let mut client = Connection::connect(&daemon.path, "guest", TIMEOUT).unwrap();
        // Some leave at once, some with a request in flight, some after it.
        let request = Box::new(GenerateRequest::new(Input::Text("count 50".into())));
        if guest % 3 > 0 {
            client.send(&ClientMessage::Generate { id: 1, request }).unwrap();
        }
        if guest % 3 == 2 {
            client.recv_wait(Some(TIMEOUT)).unwrap();
        }
        drop(client);
        daemon.wait_for(|seen| matches!(seen, Seen::Gone { app } if app == "guest"));
    }

    assert_eq!(held(), before);
    waiting.send(&ClientMessage::Cancel { id: 7 }).unwrap();
    assert!(matches!(waiting.recv_wait(Some(TIMEOUT)).unwrap(), Some(ServerMessage::Done { id: 7, .. })));
}
