//! A client that writes what it likes into everything it holds.

// A failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

mod echo;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use echo::{EchoConfig, EchoDaemon, Seen};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_setfl};
use rustix::io::pwrite;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, send, socket_with, socketpair,
};
use tandem_ipc::channel::RecvError;
use tandem_ipc::client::Connection as Client;
use tandem_ipc::layout::{
    DATA_AT, Direction, READ_AT, ROOM_AT, SLEEP_AT, WORD, WRITE_AT, frame_cap, region_bytes,
};
use tandem_ipc::message::{ClientMessage, ServerMessage};
use tandem_ipc::peer::PeerCredentials;
use tandem_ipc::ring::{Consumer, Corrupt};
use tandem_ipc::server::{ClientEnds, Connection, RingSizes};
use tandem_ipc::words::{Words, WordsMut};

const RINGS: RingSizes = RingSizes { request: 4096, response: 4096 };

/// The daemon's end of a connection, and the bare descriptors of a client.
fn hostile() -> (Connection, ClientEnds, OwnedFd) {
    let (client, daemon) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let peer = PeerCredentials::of(&daemon).unwrap();
    let (server, ends) = Connection::create(peer, "hostile".into(), daemon, RINGS).unwrap();
    (server, ends, client)
}

fn poke(memory: impl AsFd, at: usize, word: u64) {
    let written = pwrite(memory, &word.to_ne_bytes(), (at * WORD) as u64).unwrap();
    assert_eq!(written, WORD);
}

/// What the daemon makes of a write index and a first length word.
fn verdict(write: u64, length: u64) -> RecvError {
    let (mut server, ends, _life_line) = hostile();
    poke(&ends.request, DATA_AT, length);
    poke(&ends.request, WRITE_AT, write);
    let error = server.recv().unwrap_err();
    // The half stays failed even when the client takes it back.
    poke(&ends.request, WRITE_AT, 0);
    assert_eq!(server.recv().unwrap_err().to_string(), error.to_string());
    error
}

#[test]
fn an_impossible_write_index_is_named() {
    for write in [4097, 4104, 7, u64::MAX, u64::MAX - 7, 1 << 63] {
        match verdict(write, 8) {
            RecvError::Ring(corrupt @ Corrupt::Index { write: found, .. }) => {
                assert_eq!(found, write);
                let text = corrupt.to_string();
                assert!(text.contains(&write.to_string()), "{text}");
                assert!(text.contains("4096"), "{text}");
            }
            other => panic!("{write}: {other}"),
        }
    }
}

#[test]
fn an_impossible_length_is_named() {
    let cap = frame_cap(4096) as u64;
    // Zero; past the cap; past what was written; upper half set; all ones.
    for (write, length) in
        [(16, 0), (4096, cap + 1), (16, 9), (8, 1), (16, 1 << 32), (16, u64::MAX), (16, (1 << 32) | 4)]
    {
        match verdict(write, length) {
            RecvError::Ring(Corrupt::Length { word, .. }) => assert_eq!(word, length),
            other => panic!("{write} {length}: {other}"),
        }
    }
}

#[test]
fn a_frame_of_garbage_is_a_decode_error() {
    let (mut server, ends, _life_line) = hostile();
    poke(&ends.request, DATA_AT, 8);
    poke(&ends.request, DATA_AT + 1, u64::MAX);
    poke(&ends.request, WRITE_AT, 16);
    assert!(matches!(server.recv(), Err(RecvError::Decode(_))));
}

#[test]
fn an_impossible_read_index_fails_the_send_with_its_value() {
    let (mut server, ends, _life_line) = hostile();
    poke(&ends.request, READ_AT, 12_345);
    let pong = ServerMessage::Status { id: 1, json: "x".repeat(1000) };
    let error = loop {
        match server.send(&pong) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(!error.is_full(), "{error}");
    assert!(error.to_string().contains("12345"), "{error}");
}

#[test]
fn a_client_that_never_reads_fills_its_own_ring_only() {
    let (mut server, _ends, _life_line) = hostile();
    let status = ServerMessage::Status { id: 1, json: "x".repeat(1000) };
    let sent = (0..10).take_while(|_| server.send(&status).is_ok()).count();
    assert_eq!(sent, 4, "four frames of 1016 bytes fit 4096");
    assert!(server.send(&status).unwrap_err().is_full());
}

#[test]
fn holes_in_the_request_region_are_harmless() {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let all = region_bytes(4096) as u64;
    // Before anything was read: an empty ring.
    let (mut server, ends, _life_line) = hostile();
    fallocate(&ends.request, punch, 0, all).unwrap();
    assert!(server.recv().unwrap().is_none());
    // After a frame was read: the index went backwards.
    let (mut server, ends, life_line) = hostile();
    let request = ends.request.try_clone().unwrap();
    let mut client = Client::from_ends(life_line, ends, RINGS).unwrap();
    client.send(&ClientMessage::Ping { id: 1 }).unwrap();
    assert!(server.recv().unwrap().is_some());
    fallocate(&request, punch, 0, all).unwrap();
    assert!(matches!(server.recv(), Err(RecvError::Ring(Corrupt::Index { write: 0, read: 16, .. }))));
}

#[test]
fn a_client_can_not_make_the_daemon_block_on_a_doorbell() {
    let (mut server, ends, _life_line) = hostile();
    for bell in [&ends.request_bell, &ends.response_bell] {
        fcntl_setfl(bell, OFlags::empty()).unwrap();
    }
    // The client's own bell, filled to the brim; it has no way to the other.
    rustix::io::write(&ends.request_bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert!(rustix::io::write(&ends.response_bell, &1u64.to_ne_bytes()).is_err());
    for epoch in (1..200).step_by(2) {
        poke(&ends.request, SLEEP_AT, epoch);
        poke(&ends.request, ROOM_AT, epoch);
        server.send(&ServerMessage::Pong { id: epoch }).unwrap();
        assert!(server.recv().unwrap().is_none());
        server.link().clear_doorbell().unwrap();
    }
}

/// A region whose write index is there at every second look.
#[derive(Default)]
struct Flipping {
    looks: AtomicU64,
}

impl Words for Flipping {
    fn load(&self, at: usize, _: Ordering) -> u64 {
        let look = self.looks.fetch_add(u64::from(at == WRITE_AT), Ordering::Relaxed);
        if at == WRITE_AT { look % 2 * 16 } else { 0 }
    }

    fn fence(&self) {}
}

impl WordsMut for Flipping {
    fn store(&self, _: usize, _: u64, _: Ordering) {}
}

#[test]
fn an_index_that_flips_can_not_keep_the_reader_looking() {
    let peer = Arc::new(Flipping::default());
    let mut consumer = Consumer::new(Direction::Request, 4096, Arc::new(Flipping::default()), peer);
    let mut out = Vec::new();
    assert_eq!(consumer.pop(&mut out), Ok(None));
    assert!(!consumer.sleep(), "the second look sees a frame");
    let taken_back = Corrupt::TakenBack { ring: "request", write: 0 };
    assert_eq!(consumer.pop(&mut out), Err(taken_back));
}

#[test]
fn words_rewritten_while_the_daemon_reads_end_in_typed_errors_only() {
    let mut endings = [0u32; 3];
    for seed in 1..=40u64 {
        let (mut server, ends, _life_line) = hostile();
        let writing = std::thread::spawn(move || {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut random = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            // Plausible at first, so that the reader gets into the data.
            for at in DATA_AT..DATA_AT + 512 {
                poke(&ends.request, at, 8);
            }
            poke(&ends.request, WRITE_AT, 4096);
            for _ in 0..2000 {
                let value = random();
                match value % 5 {
                    0 => poke(&ends.request, WRITE_AT, (value >> 8) % 8192 / 8 * 8),
                    1 => poke(&ends.request, READ_AT, (value >> 8) % 8192),
                    2 => poke(&ends.request, SLEEP_AT, value),
                    _ => {
                        let at = DATA_AT + (value >> 16) as usize % 512;
                        poke(&ends.request, at, (value >> 40) % 2100);
                    }
                }
            }
        });
        while !writing.is_finished() {
            match server.recv() {
                Ok(_) => {}
                Err(RecvError::Ring(corrupt)) => {
                    endings[usize::from(matches!(corrupt, Corrupt::Length { .. }))] += 1;
                    break;
                }
                Err(RecvError::Decode(_)) => endings[2] += 1,
                Err(other) => panic!("seed {seed}: {other}"),
            }
            // Either is a typed result; neither may panic or block.
            let _ = server.send(&ServerMessage::Pong { id: seed });
        }
        writing.join().unwrap();
    }
    assert!(endings.iter().sum::<u32>() > 0, "the writer was never noticed");
}

/// Connects to a real daemon by hand and returns the descriptors.
fn raw_client(daemon: &EchoDaemon) -> (OwnedFd, Vec<OwnedFd>) {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(&daemon.path).unwrap()).unwrap();
    send(&socket, b"TANDEMhs\x01\0\0\0\x07hostile", SendFlags::empty()).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0u8; 256];
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    assert_eq!(fds.len(), 4);
    (socket, fds)
}

fn ping(client: &mut Client, id: u64) {
    client.send(&ClientMessage::Ping { id }).unwrap();
    let pong = client.recv_wait(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(pong, Some(ServerMessage::Pong { id }));
}

#[test]
fn a_hostile_client_is_dropped_in_words_and_its_neighbour_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let mut neighbour = Client::connect(&daemon.path, "neighbour", Duration::from_secs(30)).unwrap();
    ping(&mut neighbour, 1);

    let (socket, fds) = raw_client(&daemon);
    poke(&fds[0], WRITE_AT, u64::MAX - 7);
    rustix::io::write(&fds[2], &1u64.to_ne_bytes()).unwrap();
    let dropped = daemon.wait_for(|seen| matches!(seen, Seen::Dropped { .. }));
    assert!(format!("{dropped:?}").contains("hostile"), "{dropped:?}");
    let mut bytes = [0u8; 1024];
    let (len, _) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty()).unwrap();
    let goodbye = String::from_utf8_lossy(&bytes[..len]);
    assert!(goodbye.contains("write index"), "{goodbye}");

    ping(&mut neighbour, 2);
}

#[test]
fn a_client_that_talks_on_its_life_line_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let (socket, fds) = raw_client(&daemon);
    send(&socket, b"hello again", SendFlags::empty()).unwrap();
    rustix::io::write(&fds[2], &1u64.to_ne_bytes()).unwrap();
    let dropped = daemon.wait_for(|seen| matches!(seen, Seen::Dropped { .. }));
    assert!(format!("{dropped:?}").contains("life line"), "{dropped:?}");
}
