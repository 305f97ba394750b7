//! `tandem bench ipc`: round trips and bursts through the rings, beside a Unix
//! socket that carries the same bytes, interleaved in one run.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use serde::Serialize;

use crate::client::Connection as Client;
use crate::doorbell::Wake;
use crate::listener::RingSizes;
use crate::message::{ClientMessage, Message, ServerMessage};
use crate::peer::PeerCredentials;
use crate::server::Connection as Server;

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub struct BenchConfig {
    /// Alternations of ring and socket.
    pub rounds: usize,
    /// Round trips in each.
    pub round_trips: usize,
    /// Token events in each burst.
    pub burst: usize,
}

impl Default for BenchConfig {
    fn default() -> Self {
        BenchConfig { rounds: 9, round_trips: 2_000, burst: 20_000 }
    }
}

/// Smallest, middle and largest of the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// Middle.
    pub median: f64,
    /// Largest.
    pub max: f64,
}

/// Ring and socket, and what the ring does better, by round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pair {
    /// The rings' figure.
    pub ring: Spread,
    /// The socket's figure.
    pub socket: Spread,
    /// How many times better the ring was (above 1 is better), within a round.
    pub ratio: Spread,
}

/// The result of [`run`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IpcBench {
    /// A ping and its pong, microseconds.
    pub round_trip_us: Pair,
    /// Token events a second, daemon to client.
    pub burst_per_s: Pair,
}

/// Why a bench gave no figures.
#[derive(Debug, thiserror::Error)]
#[error("bench ipc: {0}")]
pub struct BenchError(String);

fn failed<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError(error.to_string())
}

/// Measures. Each side of a pair runs in a thread of its own; takes about a
/// second with the default settings.
pub fn run(config: BenchConfig) -> Result<IpcBench, BenchError> {
    if config.rounds == 0 || config.round_trips == 0 || config.burst == 0 {
        return Err(BenchError("rounds, round_trips and burst must be 1 or more".into()));
    }
    let mut figures = [const { Vec::new() }; 4];
    for _ in 0..config.rounds {
        let (ring_trip, ring_burst) = with_rings(config)?;
        let (socket_trip, socket_burst) = with_sockets(config)?;
        for (into, figure) in figures.iter_mut().zip([ring_trip, socket_trip, ring_burst, socket_burst]) {
            into.push(figure);
        }
    }
    let [ring_trips, socket_trips, ring_bursts, socket_bursts] = &figures;
    Ok(IpcBench {
        round_trip_us: pair(ring_trips, socket_trips, |ring, socket| socket / ring),
        burst_per_s: pair(ring_bursts, socket_bursts, |ring, socket| ring / socket),
    })
}

fn pair(ring: &[f64], socket: &[f64], better: fn(f64, f64) -> f64) -> Pair {
    let ratios = ring.iter().zip(socket).map(|(&r, &s)| better(r, s));
    Pair { ring: spread(ring.to_vec()), socket: spread(socket.to_vec()), ratio: spread(ratios.collect()) }
}

fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    Spread { min: values[0], median: values[values.len() / 2], max: values[values.len() - 1] }
}

/// The message of a burst: what a decode step sends.
fn token(id: u64) -> ServerMessage {
    ServerMessage::Token { id, token: 1234, text: "\"action\"".into(), top_logprobs: None }
}

fn micros(elapsed: Duration, count: usize) -> f64 {
    elapsed.as_secs_f64() * 1e6 / count as f64
}

/// Answers a ping with a pong, and `Status` with a burst of tokens.
fn serve_rings(mut server: Server, burst: usize) -> Result<(), String> {
    loop {
        match server.recv().map_err(|error| error.to_string())? {
            Some(ClientMessage::Ping { id }) => {
                server.send(&ServerMessage::Pong { id }).map_err(|error| error.to_string())?
            }
            Some(_) => {
                for id in 0..burst as u64 {
                    send_waiting(&mut server, &token(id))?;
                }
            }
            None => {
                let wake = server.wait(None).map_err(|error| error.to_string())?;
                if wake == Wake::LifeLine {
                    return Ok(());
                }
            }
        }
    }
}

fn send_waiting(server: &mut Server, message: &ServerMessage) -> Result<(), String> {
    loop {
        match server.send(message) {
            Err(error) if error.is_full() => {}
            other => return other.map_err(|error| error.to_string()),
        }
        if server.wait(None).map_err(|error| error.to_string())? == Wake::LifeLine {
            return Err("the client hung up".into());
        }
    }
}

fn with_rings(config: BenchConfig) -> Result<(f64, f64), BenchError> {
    let (client, daemon) = pair_of_sockets()?;
    let rings = RingSizes::default();
    let peer = PeerCredentials::of(&daemon).map_err(failed)?;
    let (server, ends) =
        Server::create(peer, "bench".into(), daemon, rings).map_err(|(_, error)| failed(error))?;
    let mut client = Client::from_ends(client, ends, rings).map_err(failed)?;
    let serving = std::thread::spawn(move || serve_rings(server, config.burst));
    let figures = drive_rings(&mut client, config);
    drop(client);
    match serving.join() {
        Ok(Ok(())) => figures,
        Ok(Err(reason)) => Err(BenchError(reason)),
        Err(_) => Err(BenchError("the serving thread panicked".into())),
    }
}

fn drive_rings(client: &mut Client, config: BenchConfig) -> Result<(f64, f64), BenchError> {
    let start = Instant::now();
    for id in 0..config.round_trips as u64 {
        client.send(&ClientMessage::Ping { id }).map_err(failed)?;
        expect(client.recv_wait(None).map_err(failed)?, id)?;
    }
    let trip = micros(start.elapsed(), config.round_trips);
    let start = Instant::now();
    client.send(&ClientMessage::Status { id: 0 }).map_err(failed)?;
    for id in 0..config.burst as u64 {
        expect(client.recv_wait(None).map_err(failed)?, id)?;
    }
    Ok((trip, config.burst as f64 / start.elapsed().as_secs_f64()))
}

fn expect(message: Option<ServerMessage>, id: u64) -> Result<(), BenchError> {
    match message {
        Some(message) if message.id() == id => Ok(()),
        other => Err(BenchError(format!("expected message {id}, got {other:?}"))),
    }
}

fn pair_of_sockets() -> Result<(OwnedFd, OwnedFd), BenchError> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(failed)
}

fn serve_socket(socket: &OwnedFd, burst: usize) -> Result<(), BenchError> {
    let mut out = Vec::new();
    while let Some(message) = take::<ClientMessage>(socket)? {
        match message {
            ClientMessage::Ping { id } => put(socket, &ServerMessage::Pong { id }, &mut out)?,
            _ => {
                for id in 0..burst as u64 {
                    put(socket, &token(id), &mut out)?;
                }
            }
        }
    }
    Ok(())
}

fn put<M: Message>(socket: &OwnedFd, message: &M, out: &mut Vec<u8>) -> Result<(), BenchError> {
    out.clear();
    message.encode(out).map_err(failed)?;
    send(socket, out, SendFlags::NOSIGNAL).map_err(failed)?;
    Ok(())
}

fn take<M: Message>(socket: &OwnedFd) -> Result<Option<M>, BenchError> {
    let mut bytes = [0u8; 1024];
    let (frame, _) = recv(socket, &mut bytes[..], RecvFlags::empty()).map_err(failed)?;
    if frame == 0 {
        return Ok(None);
    }
    M::decode(&bytes[..frame]).map(Some).map_err(failed)
}

fn with_sockets(config: BenchConfig) -> Result<(f64, f64), BenchError> {
    let (client, daemon) = pair_of_sockets()?;
    let serving = std::thread::spawn(move || serve_socket(&daemon, config.burst));
    let figures = drive_socket(&client, config);
    drop(client);
    match serving.join() {
        Ok(Ok(())) => figures,
        Ok(Err(error)) => Err(error),
        Err(_) => Err(BenchError("the serving thread panicked".into())),
    }
}

fn drive_socket(client: &OwnedFd, config: BenchConfig) -> Result<(f64, f64), BenchError> {
    let mut out = Vec::new();
    let start = Instant::now();
    for id in 0..config.round_trips as u64 {
        put(client, &ClientMessage::Ping { id }, &mut out)?;
        expect(take(client)?, id)?;
    }
    let trip = micros(start.elapsed(), config.round_trips);
    let start = Instant::now();
    put(client, &ClientMessage::Status { id: 0 }, &mut out)?;
    for id in 0..config.burst as u64 {
        expect(take(client)?, id)?;
    }
    Ok((trip, config.burst as f64 / start.elapsed().as_secs_f64()))
}
