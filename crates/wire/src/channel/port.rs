//! One end of one port: frames in and out, and the byte stream inside them.
//!
//! A reader task takes frames off the wire whatever else is stuck: DATA goes to
//! the current [`ByteStream`], everything else to [`Port::next_event`]. Writing is
//! done by whoever has something to write, under one lock; who finishes wakes the
//! other. DATA can be *parked*: then only control frames are written.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::frame::{Decoder, Frame, HEADER_BYTES, Header, Kind, MAX_DATA_BYTES};

/// DATA received and not yet taken by HTTP/2. HTTP/2 takes it at once unless its
/// own writes are parked; then what is on its way has to fit, or the freeze
/// barrier's last frame could not be read: 4 MiB in the virtio ring, and what the
/// VMM and the socket hold.
const MAX_INBOUND_BYTES: usize = 8 << 20;

/// Bytes taken from HTTP/2 beyond which it has to wait for the wire.
const MAX_OUTBOUND_BYTES: usize = 128 << 10;

/// Room made for one read.
const READ_BYTES: usize = 64 << 10;

/// Control frames received and not yet handled. Honest peers have one or two.
const MAX_EVENTS: usize = 16;

type Writer = Box<dyn AsyncWrite + Send + Unpin>;

struct State {
    /// The epoch whose DATA counts; 0 before the first.
    epoch: u64,
    /// Set while only this frame counts (its kind and epoch), until it is here.
    awaited: Option<(Kind, u64)>,
    inbound: VecDeque<Bytes>,
    inbound_bytes: usize,
    read_waker: Option<Waker>,
    /// The wire's reading side has ended.
    ended: bool,
    parked: bool,
    /// Whole frames, the first perhaps written in part.
    outbound: BytesMut,
    write_waker: Option<Waker>,
    /// Of whoever waits in [`PortControl::drain`].
    drain_waker: Option<Waker>,
    /// The last freeze that is over; a FREEZE that is handled late must not park.
    thawed: u64,
    writer: Writer,
}

impl State {
    /// Writes what is outbound, as far as the wire takes it.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outbound.is_empty() {
            let written = ready!(Pin::new(&mut self.writer).poll_write(cx, &self.outbound))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outbound.advance(written);
        }
        ready!(Pin::new(&mut self.writer).poll_flush(cx))?;
        let wakers = [self.write_waker.take(), self.drain_waker.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }

    fn push_frame(&mut self, kind: Kind, epoch: u64, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let header = Header {
            kind,
            epoch,
            length: length as u32,
        };
        self.outbound.reserve(HEADER_BYTES + length);
        self.outbound.extend_from_slice(&header.encode());
        for part in parts {
            self.outbound.extend_from_slice(part);
        }
    }

    fn wake_all(&mut self) {
        let wakers = [
            self.read_waker.take(),
            self.write_waker.take(),
            self.drain_waker.take(),
        ];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

struct Shared {
    state: Mutex<State>,
    /// Room in `inbound` again.
    taken: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One end of one port.
pub struct Port {
    control: PortControl,
    events: mpsc::Receiver<Frame>,
    reader: JoinHandle<()>,
}

impl Port {
    /// Takes over the two directions of a byte stream. Spawns a task on the
    /// current runtime, which ends with the port.
    pub fn new<R, W>(reader: R, writer: W) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                epoch: 0,
                awaited: None,
                inbound: VecDeque::new(),
                inbound_bytes: 0,
                read_waker: None,
                ended: false,
                parked: false,
                outbound: BytesMut::new(),
                write_waker: None,
                drain_waker: None,
                thawed: 0,
                writer: Box::new(writer),
            }),
            taken: Notify::new(),
        });
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        let reader = tokio::spawn(read_frames(reader, Arc::clone(&shared), sender));
        Self {
            control: PortControl { shared },
            events,
            reader,
        }
    }

    /// The next frame that is not DATA; `None` once the wire has ended.
    pub async fn next_event(&mut self) -> Option<Frame> {
        self.events.recv().await
    }

    /// Forgets events that nobody waited for.
    pub fn drop_events(&mut self) {
        while self.events.try_recv().is_ok() {}
    }

    /// The handle for parking and sending.
    pub fn control(&self) -> &PortControl {
        &self.control
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.reader.abort();
        let mut state = self.control.shared.lock();
        state.ended = true;
        state.wake_all();
    }
}

/// Parks, unparks and writes control frames. Cheap to clone.
#[derive(Clone)]
pub struct PortControl {
    shared: Arc<Shared>,
}

impl PortControl {
    /// Begins an epoch: the byte stream of the one before ends, what was queued
    /// for it is dropped, DATA flows. Returns the new epoch's byte stream.
    pub fn adopt(&self, epoch: u64) -> ByteStream {
        let mut state = self.shared.lock();
        state.epoch = epoch;
        state.awaited = None;
        state.inbound.clear();
        state.inbound_bytes = 0;
        state.outbound.clear();
        state.parked = false;
        state.thawed = 0;
        state.wake_all();
        self.shared.taken.notify_one();
        ByteStream {
            shared: Arc::clone(&self.shared),
            epoch,
        }
    }

    /// The epoch in force; 0 before the first.
    pub fn epoch(&self) -> u64 {
        self.shared.lock().epoch
    }

    /// Ignores everything up to the next frame of this kind and epoch.
    pub fn await_only(&self, kind: Kind, epoch: u64) {
        self.shared.lock().awaited = Some((kind, epoch));
    }

    /// Stops DATA at a frame boundary and waits until all of it is written.
    pub async fn park(&self) -> io::Result<()> {
        self.shared.lock().parked = true;
        self.drain().await
    }

    /// Parks for a freeze and writes `frozen` as the last frame, unless that
    /// freeze is already over.
    pub async fn park_frozen(&self, sequence: u64, payload: &[&[u8]]) -> io::Result<()> {
        {
            let mut state = self.shared.lock();
            if sequence <= state.thawed {
                return Ok(());
            }
            state.parked = true;
            let epoch = state.epoch;
            state.push_frame(Kind::Frozen, epoch, payload);
        }
        self.drain().await
    }

    /// Lets DATA flow again: the freeze `sequence` and those before it are over.
    pub fn thaw(&self, sequence: u64) {
        self.shared.lock().thawed = sequence;
        self.unpark();
    }

    /// Lets DATA flow again.
    pub fn unpark(&self) {
        let mut state = self.shared.lock();
        state.parked = false;
        state.wake_all();
    }

    /// Writes a frame and waits until the wire has it.
    pub async fn send(&self, kind: Kind, epoch: u64, payload: &[&[u8]]) -> io::Result<()> {
        self.shared.lock().push_frame(kind, epoch, payload);
        self.drain().await
    }

    /// Like [`Self::send`], of bytes that are no frame.
    pub async fn send_raw(&self, bytes: &[u8]) -> io::Result<()> {
        self.shared.lock().outbound.extend_from_slice(bytes);
        self.drain().await
    }

    async fn drain(&self) -> io::Result<()> {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            let drained = state.poll_drain(cx);
            if drained.is_pending() {
                state.drain_waker = Some(cx.waker().clone());
            }
            drained
        })
        .await
    }
}

async fn read_frames<R>(mut reader: R, shared: Arc<Shared>, events: mpsc::Sender<Frame>)
where
    R: AsyncRead + Send + Unpin + 'static,
{
    let mut decoder = Decoder::new();
    // An error and an end are the same here: the other side is gone.
    loop {
        decoder.buffer_mut().reserve(READ_BYTES);
        if !matches!(reader.read_buf(decoder.buffer_mut()).await, Ok(1..)) {
            break;
        }
        loop {
            let awaited = shared.lock().awaited;
            let Some(frame) = decoder.next_frame(awaited) else {
                break;
            };
            // From the awaited frame on everything counts, DATA right behind it too.
            shared.lock().awaited = None;
            if frame.kind == Kind::Data {
                deliver(&shared, frame).await;
            } else if events.send(frame).await.is_err() {
                return;
            }
        }
    }
    let mut state = shared.lock();
    state.ended = true;
    state.wake_all();
}

/// Queues DATA of the epoch in force, waiting for room.
async fn deliver(shared: &Shared, frame: Frame) {
    loop {
        {
            let mut state = shared.lock();
            if frame.epoch != state.epoch || frame.payload.is_empty() {
                return;
            }
            if state.inbound_bytes < MAX_INBOUND_BYTES {
                state.inbound_bytes += frame.payload.len();
                state.inbound.push_back(frame.payload);
                if let Some(waker) = state.read_waker.take() {
                    waker.wake();
                }
                return;
            }
        }
        shared.taken.notified().await;
    }
}

/// The bytes inside one epoch's DATA frames; HTTP/2 runs on it.
///
/// Ends, for reading and writing, when another epoch is adopted or the wire ends.
pub struct ByteStream {
    shared: Arc<Shared>,
    epoch: u64,
}

impl ByteStream {
    fn is_over(&self, state: &State) -> bool {
        state.ended || state.epoch != self.epoch
    }

    fn poll_write_parts(
        &self,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.shared.lock();
        if self.is_over(&state) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if state.parked {
            state.write_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if state.outbound.len() >= MAX_OUTBOUND_BYTES && state.poll_drain(cx)?.is_pending() {
            state.write_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut room = MAX_DATA_BYTES;
        let mut taken = Vec::with_capacity(parts.len());
        for part in parts {
            let length = part.len().min(room);
            room -= length;
            taken.push(&part[..length]);
        }
        let written = MAX_DATA_BYTES - room;
        if written > 0 {
            state.push_frame(Kind::Data, self.epoch, &taken);
        }
        Poll::Ready(Ok(written))
    }
}

impl Drop for ByteStream {
    fn drop(&mut self) {
        // It may be the one that the wire would wake.
        self.shared.lock().wake_all();
    }
}

impl AsyncRead for ByteStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        if state.epoch != self.epoch {
            return Poll::Ready(Ok(()));
        }
        if state.inbound.is_empty() {
            if state.ended {
                return Poll::Ready(Ok(()));
            }
            state.read_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        while buffer.remaining() > 0 {
            let Some(first) = state.inbound.front_mut() else {
                break;
            };
            let length = first.len().min(buffer.remaining());
            buffer.put_slice(&first[..length]);
            first.advance(length);
            if first.is_empty() {
                state.inbound.pop_front();
            }
            state.inbound_bytes -= length;
        }
        if state.inbound_bytes < MAX_INBOUND_BYTES {
            self.shared.taken.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_parts(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_parts(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        if self.is_over(&state) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // The owner of the port drains what is left when it parks.
        if state.parked || state.poll_drain(cx)?.is_pending() {
            state.write_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
