//! Answers that follow a JSON schema, token by token.
//!
//! ```text
//! schema text --schema::check--> sound --llguidance--> CompiledSchema (cached)
//!                                                      CompiledSchema::start --> Constraint
//! Constraint: mask() -> choose a token -> commit(token) ... until is_complete()
//! ```
//!
//! **Compact JSON.** No white space outside strings, properties in the schema's order.
//!
//! **Fails closed.** A keyword that is not enforced is an error that names it and its
//! place; see [`schema`].
//!
//! **Forced text and canonical tokens.** Where the schema leaves one text only (`{"action":"`),
//! [`Constraint::forced_tokens`] gives its tokens. They are what the tokenizer makes of
//! that text together with the last committed token; a tail that could still merge with
//! what follows is held back, and then [`Constraint::mask`] allows only tokens that
//! begin with it. While tokens are forced the mask holds exactly the first of them, so
//! an answer cannot leave the tokenization the model was trained on by itself.
//! [`Constraint::commit`] is wider: it takes any token the schema's text allows, so that
//! recorded answers can be replayed.

mod error;
pub mod schema;
mod vocabulary;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::{Value, json};
use toktrie::{InferenceCapabilities, SimpleVob, TokEnv};

pub use error::GrammarError;

use crate::tokenizer::Tokenizer;
use vocabulary::GrammarVocabulary;

/// Compiled schemas kept, most recently used.
pub const CACHE_ENTRIES: usize = 16;
/// Name of the threads on which schemas are compiled. A panic there is caught and becomes an
/// error of the request.
pub const COMPILER_THREAD: &str = "tandem-schema";
/// Stack of the thread a schema is compiled on: chains of `$ref` recurse.
const COMPILE_STACK_BYTES: usize = 128 << 20;
/// Lexer states of one schema, of 1 to 2 KB each.
const MAX_LEXER_STATES: usize = 50_000;
/// Symbols in a schema's grammar.
const MAX_GRAMMAR_SIZE: usize = 500_000;
/// Steps to build a schema's lexer, some 50,000 a millisecond.
const INITIAL_LEXER_FUEL: u64 = 2_000_000;

/// Sets of tokens that are allowed as a whole inside a JSON string with that much room
/// left, so that the trie need not be walked for them. Each costs about 15 MB with a
/// vocabulary of 250,000; without them a mask inside a string takes 10 ms, with them
/// half of one.
const SLICES: [&str; 3] =
    [r#"[^"\\\x00-\x1F\x7F]{1,10}"#, r#"[^"\\\x00-\x1F\x7F]{1,30}"#, r#"[^"\\\x00-\x1F\x7F]+"#];

/// Compiles schemas for one vocabulary, and keeps the last few.
pub struct GrammarCompiler {
    factory: ParserFactory,
    eos: u32,
    /// Schema text and what came of it, most recently used last.
    cache: Mutex<Vec<(String, Arc<CompiledSchema>)>>,
}

impl GrammarCompiler {
    /// Prepares the vocabulary: a trie over all tokens.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, GrammarError> {
        let eos = tokenizer.eos();
        let vocabulary: TokEnv = Arc::new(GrammarVocabulary::new(tokenizer)?);
        let capabilities = InferenceCapabilities { ff_tokens: true, ..Default::default() };
        let mut factory = ParserFactory::new(&vocabulary, capabilities, &SLICES.map(str::to_owned))
            .map_err(|error| GrammarError::Vocabulary { reason: error.to_string() })?;
        // Neither log nor error may quote an answer.
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.max_grammar_size = MAX_GRAMMAR_SIZE;
        limits.initial_lexer_fuel = INITIAL_LEXER_FUEL;
        Ok(Self { factory, eos, cache: Mutex::new(Vec::new()) })
    }

    /// The constraint for a schema, from the cache where it was compiled before.
    pub fn compile(&self, schema: &str) -> Result<Arc<CompiledSchema>, GrammarError> {
        if let Some(compiled) = self.cached(schema) {
            return Ok(compiled);
        }
        let checked = schema::check(schema)?;
        let compiled = Arc::new(CompiledSchema { start: self.build(checked)?, eos: self.eos });
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.retain(|(text, _)| text != schema);
        if cache.len() >= CACHE_ENTRIES {
            cache.remove(0);
        }
        cache.push((schema.to_owned(), Arc::clone(&compiled)));
        Ok(compiled)
    }

    /// The constraint "any JSON object" (`response_format: json_object`).
    pub fn json_object(&self) -> Result<Arc<CompiledSchema>, GrammarError> {
        self.compile(r#"{"type":"object"}"#)
    }

    /// Schemas in the cache.
    pub fn cached_count(&self) -> usize {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn cached(&self, schema: &str) -> Option<Arc<CompiledSchema>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let index = cache.iter().position(|(text, _)| text == schema)?;
        let entry = cache.remove(index);
        let compiled = Arc::clone(&entry.1);
        cache.push(entry);
        Some(compiled)
    }

    fn build(&self, mut schema: Value) -> Result<Matcher, GrammarError> {
        // As a whole schema, the options below want an object.
        match schema {
            Value::Bool(true) => schema = json!({}),
            Value::Bool(false) => {
                return Err(GrammarError::unsupported("nothing satisfies `false`".to_owned()));
            }
            _ => {}
        }
        let options = JsonCompileOptions {
            whitespace_flexible: false,
            lenient: false,
            coerce_one_of: false,
            ..JsonCompileOptions::default()
        };
        // How this library takes its options; `schema::check` refuses the key in a request.
        options.apply_to(&mut schema);
        let grammar = TopLevelGrammar::from_json_schema(schema);
        let build = || {
            catch_unwind(AssertUnwindSafe(|| self.factory.create_parser(grammar)))
                .map_err(|_| "the compiler failed on it".to_owned())
                .and_then(|parser| parser.map_err(|error| format!("{error:#}")))
        };
        let parser = thread::scope(|scope| {
            thread::Builder::new()
                .name(COMPILER_THREAD.to_owned())
                .stack_size(COMPILE_STACK_BYTES)
                .spawn_scoped(scope, build)
                .map_err(|error| format!("no thread to compile it on: {error}"))
                .and_then(|thread| {
                    thread.join().unwrap_or_else(|_| Err("the compiler failed on it".to_owned()))
                })
        })
        .map_err(GrammarError::unsupported)?;
        let mut matcher = Matcher::new(Ok(parser));
        match matcher.grammar_warnings().into_iter().next() {
            Some(warning) => Err(GrammarError::unsupported(warning)),
            None => Ok(matcher),
        }
    }
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").field("cached", &self.cached_count()).finish()
    }
}

/// A schema ready to constrain answers; they share what its lexer has learned.
pub struct CompiledSchema {
    start: Matcher,
    eos: u32,
}

impl CompiledSchema {
    /// A constraint at the start of an answer.
    pub fn start(&self) -> Constraint {
        Constraint {
            matcher: self.start.clone(),
            eos: self.eos,
            ended: false,
            mask: None,
            base: None,
            ahead: 0,
            foreseen: VecDeque::new(),
        }
    }
}

impl std::fmt::Debug for CompiledSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CompiledSchema")
    }
}

/// The tokens allowed next: a bit a token of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    bits: SimpleVob,
}

impl TokenMask {
    /// Whether a token is allowed; never, for an id out of range.
    pub fn is_allowed(&self, id: u32) -> bool {
        (id as usize) < self.bits.len() && self.bits.is_allowed(id)
    }

    /// Number of tokens allowed.
    pub fn count(&self) -> usize {
        self.bits.num_set()
    }

    /// The only token allowed, if there is only one.
    pub fn single(&self) -> Option<u32> {
        let mut ids = self.iter();
        ids.next().filter(|_| ids.next().is_none())
    }

    /// The tokens allowed, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.bits.iter()
    }

    /// The bits, 32 a word, lowest first; bits past the vocabulary are clear.
    pub fn words(&self) -> &[u32] {
        self.bits.as_slice()
    }
}

/// An answer in the making under a schema. A clone goes its own way, which together
/// with [`Self::rollback`] is what speculation needs.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    eos: u32,
    /// The end token was committed after the schema was complete.
    ended: bool,
    /// Of the present state, once computed.
    mask: Option<Arc<TokenMask>>,
    /// Of the state that [`Self::return_back`] goes back to, if computed.
    base: Option<Arc<TokenMask>>,
    /// Tokens foreseen and not taken back.
    ahead: usize,
    /// Tokens foreseen from the present state, or from that at the last return, each with
    /// the mask after it, if computed: where they are then committed, it is not computed again.
    foreseen: VecDeque<(u32, Option<Arc<TokenMask>>)>,
}

impl Constraint {
    /// The tokens allowed next; exactly the end token once the answer is complete.
    pub fn mask(&mut self) -> Result<Arc<TokenMask>, GrammarError> {
        if let Some(mask) = &self.mask {
            return Ok(Arc::clone(mask));
        }
        if self.ended {
            return Err(GrammarError::Ended);
        }
        let bits = self.matcher.compute_mask_or_eos().map_err(|_| self.failure())?;
        let mask = Arc::new(TokenMask { bits });
        self.mask = Some(Arc::clone(&mask));
        if let Some((_, of)) = self.ahead.checked_sub(1).and_then(|at| self.foreseen.get_mut(at)) {
            *of = Some(Arc::clone(&mask));
        }
        Ok(mask)
    }

    /// Whether [`Self::mask`] allows a token.
    pub fn allowed(&mut self, id: u32) -> Result<bool, GrammarError> {
        Ok(self.mask()?.is_allowed(id))
    }

    /// Takes a token into the answer. One that the schema does not allow is an error
    /// and changes nothing.
    pub fn commit(&mut self, id: u32) -> Result<(), GrammarError> {
        self.return_back()?;
        self.consume(id)?;
        match self.foreseen.pop_front() {
            Some((foreseen, mask)) if foreseen == id => self.mask = mask,
            _ => self.foreseen.clear(),
        }
        Ok(())
    }

    /// As [`Self::commit`], but only to look at what would follow: [`Self::return_back`], and
    /// any real commit, forget it.
    pub fn foresee(&mut self, id: u32) -> Result<(), GrammarError> {
        let before = self.mask.clone();
        self.consume(id)?;
        if self.ahead == 0 {
            self.foreseen.clear();
            self.base = before;
        }
        self.ahead += 1;
        self.foreseen.push_back((id, None));
        Ok(())
    }

    /// Goes back to the answer as committed.
    pub fn return_back(&mut self) -> Result<(), GrammarError> {
        let ahead = std::mem::take(&mut self.ahead);
        if ahead > 0 {
            self.rollback(ahead)?;
            self.mask = self.base.take();
        }
        Ok(())
    }

    fn consume(&mut self, id: u32) -> Result<(), GrammarError> {
        if self.ended {
            return Err(GrammarError::Ended);
        }
        if self.is_complete() {
            return match id == self.eos {
                true => {
                    self.ended = true;
                    self.mask = None;
                    Ok(())
                }
                false => Err(GrammarError::NotAllowed { id }),
            };
        }
        // Any other call with a token out of range would end the matcher for good.
        let known = self.matcher.tok_env().is_ok_and(|env| (id as usize) < env.tok_trie().vocab_size());
        if !known {
            return Err(GrammarError::NotAllowed { id });
        }
        match self.matcher.try_consume_tokens(&[id]) {
            Ok(1) => {
                self.ended = id == self.eos;
                self.mask = None;
                Ok(())
            }
            Ok(_) => Err(GrammarError::NotAllowed { id }),
            Err(_) => Err(self.failure()),
        }
    }

    /// The tokens the schema forces next, in order; none where there is a choice, or
    /// where the answer is complete. They are not committed by this.
    pub fn forced_tokens(&mut self) -> Vec<u32> {
        if self.ended || self.is_complete() {
            return Vec::new();
        }
        self.matcher.compute_ff_tokens()
    }

    /// Takes back the last `count` committed tokens.
    pub fn rollback(&mut self, count: usize) -> Result<(), GrammarError> {
        if count == 0 {
            return Ok(());
        }
        self.mask = None;
        let mut count = count;
        // The end token is the matcher's only if it ended a text that could go on.
        if std::mem::take(&mut self.ended) && self.matcher.stop_reason() != StopReason::EndOfSentence {
            count -= 1;
        }
        self.matcher.rollback(count).map_err(|_| self.failure())
    }

    /// Whether the answer is whole and nothing but the end token may follow.
    pub fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && self.matcher.stop_reason().is_ok()
    }

    /// Whether the answer may end here (it may also go on, unless complete).
    pub fn can_end(&mut self) -> Result<bool, GrammarError> {
        if self.is_complete() {
            return Ok(true);
        }
        self.matcher.is_accepting().map_err(|_| self.failure())
    }

    /// Why the matcher gave up, without its words, which may quote the answer.
    fn failure(&self) -> GrammarError {
        GrammarError::Failed { reason: self.matcher.stop_reason().to_string() }
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("complete", &self.is_complete()).finish_non_exhaustive()
    }
}
