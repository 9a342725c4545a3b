//! Listening, loading, serving, ending.
//!
//! Connections are served by a small runtime of their own; the engine steps on the thread that calls
//! [`Server::run`]. A signal to end lets requests under way finish until a deadline; a second one ends at once.

use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::Engine;
use engine::session::Session;
use grammar::Allowance;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use runtime::Plan;
use text::ModelText;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::budget::Budget;
use crate::connection::Requests;
use crate::engine_thread::{self, EngineHandle};
use crate::live::Feed;
use crate::model::{Facts, Model, Pulse};
use crate::seats::Seats;
use crate::shared::ServerState;
use crate::socket::Socket;
use crate::{Options, app, turns};

/// Threads for connections at most.
const MOST_THREADS: usize = 4;
/// The longest head of a request, and what is read of a body at once: every connection may hold as much, before its
/// key is looked at.
pub const HEAD_BYTES: usize = 16 << 10;
/// What the system may keep for a client that does not read: megabytes if left alone, and no answer would ever
/// have to wait for its reader.
const SEND_BYTES: u32 = 64 << 10;
/// Connections that the system may keep before they are taken.
const BACKLOG: u32 = 1024;
/// Files that a model, its reads and the program itself have open in addition to connections.
const FILES: u64 = 512;
/// How long the server rests where the system has no file left for a connection.
const NO_FILES: Duration = Duration::from_millis(50);
/// How long connections may take to close once all answers are given.
const CLOSING: Duration = Duration::from_secs(2);

/// Why a server did not start or could not continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// Host and port.
        address: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// There are no threads to be had.
    #[error("cannot start the server's threads")]
    Threads(#[source] std::io::Error),
    /// The model's tokenizer cannot be used for grammars.
    #[error("cannot prepare structured output")]
    Grammars(#[source] grammar::GrammarError),
}

/// A model, ready to answer.
pub struct Loaded {
    /// As the user named it.
    pub name: String,
    /// The model itself.
    pub engine: Engine,
    /// Text to tokens and back.
    pub text: ModelText,
    /// Where the memory goes.
    pub plan: Plan,
    /// `model_type` of its config.
    pub model_type: String,
    /// All parameters.
    pub parameters: u64,
    /// Bytes of all weights.
    pub bytes: u64,
    /// Such as `4-bit`.
    pub quantization: String,
}

/// A server that answers; until [`Server::run`] it says that the model is loading.
pub struct Server {
    runtime: Runtime,
    shared: Arc<ServerState>,
    address: SocketAddr,
    /// Set when no more connections are to be taken.
    closing: watch::Sender<bool>,
    /// Ends when the last connection is closed.
    served: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Listens and answers.
    pub fn start(options: Options) -> Result<Server, StartError> {
        let failed = |source| StartError::Listen {
            address: format!("{}:{}", options.host, options.port),
            source,
        };
        // Connections need little, but they take it from the model's threads, which wait for each other: so they take it from
        // all alike, where there are few.
        let threads = machine::cpu::core_count().clamp(1, MOST_THREADS);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("connections")
            .enable_all()
            .build()
            .map_err(StartError::Threads)?;
        let listener = {
            let _inside = runtime.enter();
            listen(&options.host, options.port).map_err(failed)?
        };
        let address = listener.local_addr().map_err(failed)?;
        let connections = granted(options.connections);
        let shared = Arc::new(ServerState::new(options));
        let (closing, until) = watch::channel(false);
        let served = runtime.spawn(serve(listener, Arc::clone(&shared), connections, until));
        Ok(Server { runtime, shared, address, closing, served })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the model until a signal comes, and gives the engine back. `ready` is called when requests are
    /// taken.
    pub fn run(self, loaded: Loaded, ready: impl FnOnce()) -> Result<Engine, StartError> {
        let facts = facts(&loaded);
        let Loaded { mut engine, text, .. } = loaded;
        let (handle, thread, steps) = engine_thread::open();
        self.runtime.spawn(engine_thread::deliver(steps));
        let render_bytes = text.render_bytes();
        let budget = Budget::new(loaded.plan.request_bytes(), turns::PLACES, render_bytes);
        let allowance = Arc::clone(&budget) as Arc<dyn Allowance>;
        let session = Session::new(&engine, text).with_grammars(allowance);
        let created =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let model = Model {
            name: loaded.name,
            created,
            session: session.map_err(StartError::Grammars)?,
            engine: handle.clone(),
            plan: loaded.plan,
            facts,
            pulse: std::sync::Mutex::new(Pulse::of(&engine)),
        };
        self.shared.open(model, budget);
        let ender =
            self.runtime.spawn(end_on_signal(Arc::clone(&self.shared), handle, self.closing));
        ready();
        let mut feed = Feed::new(Arc::clone(&self.shared));
        thread.run(&mut engine, &self.shared.metrics, |engine, step| feed.after_step(engine, step));
        // Ends the streams of viewers.
        drop(feed);
        // The engine is done; what is left on the wire may still go out.
        self.runtime.block_on(async {
            ender.abort();
            let _ = tokio::time::timeout(CLOSING, self.served).await;
        });
        self.runtime.shutdown_timeout(Duration::from_millis(100));
        Ok(engine)
    }
}

fn facts(loaded: &Loaded) -> Facts {
    let runner = loaded.engine.runner();
    let (spec, options) = (runner.spec(), runner.options());
    let layers = spec.moe_layers().count();
    let experts = spec
        .moe_layers()
        .next()
        .map(|(_, moe)| (layers, moe.experts.experts(), moe.experts_per_token()));
    Facts {
        model_type: loaded.model_type.clone(),
        context: options.context,
        vocabulary: spec.vocab,
        parallel: options.sequences,
        parameters: loaded.parameters,
        bytes: loaded.bytes,
        quantization: loaded.quantization.clone(),
        experts,
    }
}

/// Listens on the first address of this name that can be listened on.
fn listen(host: &str, port: u16) -> std::io::Result<TcpListener> {
    let mut last = std::io::Error::other("the name has no address");
    for address in (host, port).to_socket_addrs()? {
        let listening = || {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            // A port whose last connections are not forgotten yet can be used again at once.
            #[cfg(unix)]
            socket.set_reuseaddr(true)?;
            // Connections inherit it.
            socket.set_send_buffer_size(SEND_BYTES)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        };
        match listening() {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// As many connections as are wanted, if the system lets the program have so many open.
fn granted(connections: usize) -> usize {
    let wanted = connections as u64 + FILES;
    match machine::descriptors::ask_for(wanted) {
        Some(files) if files < wanted => {
            let fewer = files.saturating_sub(FILES).max(files / 4);
            tracing::warn!(
                "the system lets a program open {files} files: there can be {fewer} connections at once, not {connections}"
            );
            usize::try_from(fewer).unwrap_or(connections)
        }
        _ => connections,
    }
}

/// Takes connections until `closing` is set, then waits for those that are open.
async fn serve(
    listener: TcpListener,
    shared: Arc<ServerState>,
    connections: usize,
    mut closing: watch::Receiver<bool>,
) {
    let router = app::router(Arc::clone(&shared));
    let seats = Seats::new(connections);
    let graceful = GracefulShutdown::new();
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(shared.options.patience)
        .max_buf_size(HEAD_BYTES);
    loop {
        let accepted = tokio::select! {
            _ = closing.wait_for(|&closing| closing) => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(connection) => connection,
            // Its client has gone again.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                // Out of files, most likely.
                tracing::debug!("cannot take a connection: {error}");
                seats.make_room();
                tokio::time::sleep(NO_FILES).await;
                continue;
            }
        };
        let Some(opened) = seats.open(address.ip()) else { continue };
        // Tokens are small and should not wait for one another.
        let _ = stream.set_nodelay(true);
        let options = &shared.options;
        let requests = Requests::new(router.clone(), opened.0.clone(), options.patience);
        let metrics = Arc::clone(&shared.metrics);
        let socket = Socket::new(stream, opened.0.clone(), metrics, options.unread);
        let shared = Arc::clone(&shared);
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(socket), requests));
        tokio::spawn(async move {
            tokio::select! {
                // Clients that vanish are none of our errors.
                _ = connection => {}
                () = opened.0.given_up() => {}
            }
            drop(opened);
            // Many of them leave much behind, and it is no request's.
            if let Ok(budget) = shared.budget() {
                budget.was_freed(HEAD_BYTES);
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Waits for a signal; lets requests finish; stops the engine.
async fn end_on_signal(
    shared: Arc<ServerState>,
    engine: EngineHandle,
    closing: watch::Sender<bool>,
) {
    signal().await;
    shared.drain();
    let _ = closing.send(true);
    let deadline = shared.options.drain;
    let under_way = shared.occupied();
    if under_way > 0 {
        tracing::warn!(
            "shutting down: {under_way} answers may finish within {} s; a second signal ends at once",
            deadline.as_secs()
        );
    }
    let finished = async {
        while shared.occupied() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = finished => {}
        () = tokio::time::sleep(deadline) => tracing::warn!("the deadline is over: remaining requests are cancelled"),
        () = signal() => {}
    }
    engine.stop();
}

/// The next signal to end.
#[cfg(unix)]
fn signal() -> impl Future<Output = ()> {
    use tokio::signal::unix::{Signal, SignalKind, signal};
    // A signal that cannot be listened for keeps its own meaning: it ends the process.
    let listen = |kind: SignalKind| signal(kind).ok();
    async fn next(signal: &mut Option<Signal>) {
        match signal {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    }
    async move {
        let mut interrupt = listen(SignalKind::interrupt());
        let mut terminate = listen(SignalKind::terminate());
        tokio::select! {
            () = next(&mut interrupt) => {}
            () = next(&mut terminate) => {}
        }
    }
}

/// The next signal to end.
#[cfg(windows)]
async fn signal() {
    use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close};
    // Signals that cannot be listened for keep their own meaning: they end the process.
    let (Ok(mut key), Ok(mut other_key), Ok(mut window)) = (ctrl_c(), ctrl_break(), ctrl_close())
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = key.recv() => {}
        _ = other_key.recv() => {}
        _ = window.recv() => {}
    }
}
