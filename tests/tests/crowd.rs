//! Clients that come in numbers, die in the middle and write nonsense into shared memory.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketType, connect, recvmsg, send, socket,
};
use std::mem::MaybeUninit;
use std::process::Child;
use std::time::Duration;
use tandem_sdk::Request;
use tandem_tests::{Service, eventually, golden, start};

/// xorshift64: the same visits in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn settings(more: &str) -> String {
    format!("model = {:?}\n{more}", golden("qwen35-a"))
}

/// A client process that asks one short question.
fn visitor(service: &Service) -> Child {
    let socket = service.socket();
    let arguments =
        ["generate", "--socket", socket.to_str().unwrap(), "--prompt", "next?", "--max-tokens", "6"];
    start(arguments, |_| {})
}

/// `count` visitors, eight at a time; every second one is killed at a random moment. Answers
/// how many of the others were answered.
fn visit(service: &Service, count: usize, random: &mut Random) -> usize {
    let mut answered = 0;
    for _ in 0..count / 8 {
        let mut here: Vec<Child> = (0..8).map(|_| visitor(service)).collect();
        for killed in here.iter_mut().step_by(2) {
            std::thread::sleep(Duration::from_micros(random.below(8000)));
            killed.kill().unwrap();
        }
        for (at, visitor) in here.into_iter().enumerate() {
            let output = visitor.wait_with_output().unwrap();
            if at % 2 == 1 {
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(output.status.code(), Some(0), "{error}");
                answered += 1;
            }
        }
    }
    answered
}

#[test]
fn a_thousand_clients_half_of_them_killed_leave_nothing_behind() {
    let service = Service::start(&settings(
        "log = \"warn\"\n[limits]\nclients = 40\nclients_per_user = 40\nprompt_cache_mib = 0\n",
    ));
    let waiting = service.client("waiting");
    let mut random = Random(0x5eed);
    // What the first visitors make stays: threads' stacks, the allocator's pages.
    visit(&service, 80, &mut random);
    let clients = || waiting.status().unwrap()["clients"].as_array().unwrap().len();
    eventually("all visitors are gone", || clients() == 1);
    let (descriptors, memory) = (service.descriptors(), service.kib("VmRSS"));

    let held = waiting.generate(Request::text("a long story").max_tokens(1200)).unwrap();
    assert_eq!(visit(&service, 1000, &mut random), 500);
    let answer = held.answer().unwrap();
    assert!(answer.stats.decode_tokens > 0);

    eventually("all visitors are gone again", || clients() == 1);
    eventually("their descriptors are closed", || service.descriptors() == descriptors);
    let grown = service.kib("VmRSS").saturating_sub(memory);
    // The story's own KV cells and state, and what the allocator keeps.
    assert!(grown < 16 << 10, "{grown} KiB more than before");
}

/// Connects by hand: the life line, then request ring, response ring and the two doorbells.
fn raw_client(service: &Service) -> (OwnedFd, Vec<OwnedFd>) {
    let life_line = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&life_line, &SocketAddrUnix::new(service.socket()).unwrap()).unwrap();
    send(&life_line, b"TANDEMhs\x01\0\0\0\x07hostile", SendFlags::empty()).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0u8; 256];
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    recvmsg(&life_line, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let received = ancillary.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds: Vec<OwnedFd> = received.flatten().collect();
    assert_eq!(fds.len(), 4);
    (life_line, fds)
}

#[test]
fn a_client_that_rewrites_indices_and_lengths_while_it_is_read_costs_nobody_else_anything() {
    // Words of a region, as `tandem_ipc::layout` draws it.
    const WRITE: u64 = 8;
    const READ: u64 = 16;
    const SLEEP: u64 = 24;
    const DATA: u64 = 512;
    let service = Service::start(&settings("[limits]\nclients = 4\n"));
    let neighbour = service.client("neighbour");
    let ask = || neighbour.generate(Request::text("next?").max_tokens(24)).unwrap().answer().unwrap().text;
    let alone = ask();

    let mut random = Random(0xbad);
    for round in 0..60 {
        let (_life_line, fds) = raw_client(&service);
        let poke =
            |word: u64, value: u64| rustix::io::pwrite(&fds[0], &value.to_ne_bytes(), word * 8).unwrap();
        let ring = || rustix::io::write(&fds[2], &1u64.to_ne_bytes());
        for word in DATA..DATA + 512 {
            poke(word, 8);
        }
        for _ in 0..400 {
            let value = random.below(u64::MAX);
            match value % 6 {
                0 => poke(WRITE, (value >> 8) % 8192 / 8 * 8),
                1 => poke(READ, (value >> 8) % 8192),
                2 => poke(SLEEP, value),
                3 if round % 2 == 0 => poke(WRITE, value),
                _ => poke(DATA + (value >> 16) % 512, (value >> 40) % 2100),
            };
            // It may have been dropped by now.
            let _ = ring();
        }
        if round % 20 == 19 {
            assert_eq!(ask(), alone, "round {round}");
        }
    }
    eventually("the daemon has dropped them all", || {
        neighbour.status().unwrap()["clients"].as_array().unwrap().len() == 1
    });
    assert_eq!(ask(), alone);
    assert!(!service.log().contains("panicked"), "{}", service.log());
}
