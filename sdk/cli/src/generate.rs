//! `tandem generate`: one request, or the numeric door.

use crate::daemon::{Daemon, Options};
use crate::failure::Failure;
use crate::numbers::{self, Numbers};
use crate::{logits, schema};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tandem_sdk::{Event, Finish, GenerateRequest, Input, LogprobsScope, Priority, Request, Stats, Token};

/// Asks the model once and prints the answer as it comes.
///
/// A prompt is one user message, rendered through the model's chat template. With --json the
/// output is one object: `text`, `tokens` (ids), `finish` (stop, length, schema, cancelled),
/// `stats` (as a step of `tandem replay`), `top_logprobs` (a list a token, or null).
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("input").required(true).args(["prompt", "prompt_file", "request", "tokens"]))]
pub(crate) struct Args {
    /// The user's message.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the user's message; - is standard input.
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// File with the body of an OpenAI chat-completions request (JSON); - is standard input.
    #[arg(long, value_name = "FILE")]
    request: Option<PathBuf>,
    /// File with a JSON list of prompts, each a list of token ids; their logits go to --logits.
    #[arg(long, value_name = "FILE", requires = "logits")]
    tokens: Option<PathBuf>,
    /// File for the logits, fp32 tensors `logits.0`, `logits.1`, ... one vocabulary wide.
    #[arg(long, value_name = "FILE.safetensors", requires = "tokens")]
    logits: Option<PathBuf>,
    /// One row of logits a position instead of the last position's.
    #[arg(long, requires = "logits")]
    all_positions: bool,
    #[command(flatten)]
    sampling: Sampling,
    /// Report the N likeliest tokens at every place of the answer, 1 to 20.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "tokens")]
    top_logprobs: u8,
    /// Print what the request took, on standard error.
    #[arg(long)]
    stats: bool,
    /// Print one JSON object at the end instead of text as it comes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: Options,
}

/// What may be said about an answer. Over the fields of a `--request` body.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Answer")]
struct Sampling {
    /// JSON schema of the answer: a file, or the JSON itself.
    #[arg(long, value_name = "SCHEMA", conflicts_with = "tokens")]
    schema: Option<String>,
    /// Most tokens of the answer.
    #[arg(long, value_name = "N", conflicts_with = "tokens")]
    max_tokens: Option<u32>,
    /// Temperature; 0 is greedy, the default.
    #[arg(long, value_name = "T", conflicts_with = "tokens")]
    temperature: Option<f32>,
    /// Choose among the K likeliest tokens.
    #[arg(long, value_name = "K", conflicts_with = "tokens")]
    top_k: Option<u32>,
    /// Choose among the likeliest tokens whose probabilities sum to P.
    #[arg(long, value_name = "P", conflicts_with = "tokens")]
    top_p: Option<f32>,
    /// Choose among tokens at least P times as likely as the likeliest.
    #[arg(long, value_name = "P", conflicts_with = "tokens")]
    min_p: Option<f32>,
    /// Divide the logits of tokens seen before; 1 changes nothing.
    #[arg(long, value_name = "R", conflicts_with = "tokens")]
    repetition_penalty: Option<f32>,
    /// Seed of the sampler.
    #[arg(long, value_name = "N", conflicts_with = "tokens")]
    seed: Option<u64>,
    /// End the answer before this text; repeatable.
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens")]
    stop: Vec<String>,
    /// Let the chat template open a thinking section.
    #[arg(long, conflicts_with = "tokens")]
    thinking: bool,
    /// Run when nothing interactive does.
    #[arg(long, conflicts_with = "tokens")]
    background: bool,
    /// Give up after this many milliseconds.
    #[arg(long, value_name = "MS", conflicts_with = "tokens")]
    deadline_ms: Option<u32>,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    if let (Some(tokens), Some(logits)) = (&args.tokens, &args.logits) {
        let prompts = logits::read_prompts(tokens)?;
        let daemon = args.daemon.open("tandem generate")?;
        return daemon.run(|daemon| {
            logits::write(daemon.client(), tokens, &prompts, args.all_positions, logits, args.json, out)
        });
    }
    let request = request(args)?;
    let daemon = args.daemon.open("tandem generate")?;
    daemon.run(|daemon| answer(daemon, request, args, out))
}

fn read(path: &Path) -> Result<String, Failure> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(Failure::read(path))?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(Failure::read(path))
}

fn request(args: &Args) -> Result<GenerateRequest, Failure> {
    let mut request = match (&args.prompt, &args.prompt_file, &args.request) {
        (Some(text), ..) => GenerateRequest::new(Input::Text(text.clone())),
        (_, Some(file), _) => GenerateRequest::new(Input::Text(read(file)?)),
        (_, _, Some(file)) => {
            let body = Request::from_json(&read(file)?);
            body.map_err(|error| Failure::content(file, error.to_string()))?.into()
        }
        (None, None, None) => return Err(Failure::Usage("no prompt: give --prompt TEXT".into())),
    };
    args.sampling.apply(&mut request)?;
    if args.top_logprobs > 0 {
        request.top_logprobs = args.top_logprobs;
        request.logprobs_scope = LogprobsScope::Every;
    }
    request.validate().map_err(tandem_sdk::Error::from)?;
    Ok(request)
}

impl Sampling {
    fn apply(&self, request: &mut GenerateRequest) -> Result<(), Failure> {
        if let Some(schema) = &self.schema {
            request.schema = Some(schema::text_of(schema)?);
        }
        request.max_tokens = self.max_tokens.or(request.max_tokens);
        request.temperature = self.temperature.or(request.temperature);
        request.top_k = self.top_k.or(request.top_k);
        request.top_p = self.top_p.or(request.top_p);
        request.min_p = self.min_p.or(request.min_p);
        request.repetition_penalty = self.repetition_penalty.or(request.repetition_penalty);
        request.seed = self.seed.or(request.seed);
        request.deadline_ms = self.deadline_ms.or(request.deadline_ms);
        request.enable_thinking |= self.thinking;
        if !self.stop.is_empty() {
            request.stop.clone_from(&self.stop);
        }
        if self.background {
            request.priority = Priority::Background;
        }
        Ok(())
    }
}

fn answer(
    daemon: &Daemon,
    request: GenerateRequest,
    args: &Args,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut tokens = Vec::new();
    let mut end = None;
    for event in daemon.client().generate(request)? {
        match event? {
            Event::Accepted { .. } => {}
            Event::Token(token) => {
                if !args.json {
                    out.write_all(token.text.as_bytes())?;
                    out.flush()?;
                }
                tokens.push(token);
            }
            Event::Done { finish, stats } => end = Some((finish, stats)),
        }
    }
    let Some((finish, stats)) = end else {
        return Err(tandem_sdk::Error::Protocol("the events ended without `Done`".into()).into());
    };
    if args.json {
        writeln!(out, "{}", report(&tokens, finish, &stats))?;
    } else {
        writeln!(out)?;
        print_alternatives(&tokens, out)?;
    }
    if args.stats {
        eprintln!("{} ({finish})", Numbers::from(&stats).words());
    }
    Ok(())
}

fn report(tokens: &[Token], finish: Finish, stats: &Stats) -> Value {
    let text: String = tokens.iter().map(|token| token.text.as_str()).collect();
    let top: Option<Vec<Value>> = tokens
        .iter()
        .any(|token| token.top_logprobs.is_some())
        .then(|| tokens.iter().map(alternatives).collect());
    let mut numbers = json!(Numbers::from(stats));
    numbers["drafts"] = numbers::drafts(&stats.drafts);
    json!({
        "text": text,
        "tokens": tokens.iter().map(|token| token.id).collect::<Vec<_>>(),
        "finish": finish.as_str(),
        "stats": numbers,
        "top_logprobs": top,
    })
}

fn alternatives(token: &Token) -> Value {
    let list = token.top_logprobs.as_ref();
    list.map_or(Value::Null, |list| {
        list.iter().map(|(id, text, logprob)| json!({"id": id, "token": text, "logprob": logprob})).collect()
    })
}

fn print_alternatives(tokens: &[Token], out: &mut dyn Write) -> Result<(), Failure> {
    for token in tokens {
        if let Some(list) = &token.top_logprobs {
            let list: Vec<String> =
                list.iter().map(|(id, text, logprob)| format!("{text:?} ({id}) {logprob:.3}")).collect();
            writeln!(out, "{:>8}  {}", token.id, list.join("  "))?;
        }
    }
    Ok(())
}
