//! Whether a sandbox is used, and when it last was. All traffic passes here: atomics, no lock.
//!
//! A *use* is something that lasts: an exec, a followed process, a file on its way, a request
//! until its answer begins. What may stand open without saying anything, a connection to a
//! port, counts by its bytes: each piece *touches* the sandbox.

use crate::GuestBody;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Set while the sandbox is being put on disk: whoever comes then waits for the end of that.
const CLOSED: u64 = 1 << 63;

/// How a sandbox is used.
#[derive(Debug)]
pub(crate) struct Activity {
    /// Uses under way, and [`CLOSED`]. One word: either a use comes before the closing, which
    /// then sees it, or after, and then it sees the closing.
    uses: AtomicU64,
    /// When it was last used, in µs after `since`.
    last_us: AtomicU64,
    since: Instant,
}

/// A use, until it is dropped.
#[derive(Debug)]
pub(crate) struct Using(Arc<Activity>);

/// No new use begins until it is dropped.
#[derive(Debug)]
pub(crate) struct Closed(Arc<Activity>);

impl Activity {
    /// Of a sandbox that is used now for the first time.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            uses: AtomicU64::new(0),
            last_us: AtomicU64::new(0),
            since: Instant::now(),
        })
    }

    /// Begins a use. False means that the sandbox is being put on disk: the use has to wait
    /// for the end of that, and counts already.
    pub(crate) fn begin(self: &Arc<Self>) -> (Using, bool) {
        let before = self.uses.fetch_add(1, Ordering::AcqRel);
        (Using(Arc::clone(self)), before & CLOSED == 0)
    }

    /// It is used at this moment.
    pub(crate) fn touch(&self) {
        let now = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last_us.store(now, Ordering::Release);
    }

    /// How long it has been unused; `None` while it is used.
    pub(crate) fn idle(&self) -> Option<Duration> {
        if self.uses.load(Ordering::Acquire) & !CLOSED > 0 {
            return None;
        }
        let last = Duration::from_micros(self.last_us.load(Ordering::Acquire));
        Some(self.since.elapsed().saturating_sub(last))
    }

    /// Keeps new uses waiting; those under way go on. The caller has the sandbox's turn.
    pub(crate) fn close(self: &Arc<Self>) -> Closed {
        self.uses.fetch_or(CLOSED, Ordering::AcqRel);
        Closed(Arc::clone(self))
    }

    /// The same, unless it is used. The caller has the sandbox's turn.
    pub(crate) fn close_if_unused(self: &Arc<Self>) -> Option<Closed> {
        let closed = self
            .uses
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        closed.ok().map(|_| Closed(Arc::clone(self)))
    }

    /// Whether new uses wait.
    pub(crate) fn is_closed(&self) -> bool {
        self.uses.load(Ordering::Acquire) & CLOSED != 0
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        // In this order: nobody is to see it unused for as long as the use took.
        self.0.touch();
        self.0.uses.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.uses.fetch_and(!CLOSED, Ordering::AcqRel);
    }
}

/// A body whose pieces are uses.
struct Counted {
    body: GuestBody,
    activity: Arc<Activity>,
    /// Held until its end, where it is one use as a whole.
    using: Option<Using>,
}

/// Makes each piece of a body a use.
pub(crate) fn by_pieces(body: GuestBody, activity: &Arc<Activity>) -> GuestBody {
    UnsyncBoxBody::new(Counted {
        body,
        activity: Arc::clone(activity),
        using: None,
    })
}

/// Makes a body one use, from now to its end.
pub(crate) fn as_a_whole(body: GuestBody, using: Using) -> GuestBody {
    UnsyncBoxBody::new(Counted {
        body,
        activity: Arc::clone(&using.0),
        using: Some(using),
    })
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(_))) => self.activity.touch(),
            Poll::Ready(None | Some(Err(_))) => self.using = None,
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, Full};

    fn body(text: &'static str) -> GuestBody {
        Full::new(Bytes::from(text))
            .map_err(Into::into)
            .boxed_unsync()
    }

    #[test]
    fn a_use_keeps_it_open_and_a_closed_one_keeps_uses_waiting() {
        let activity = Activity::new();
        assert!(activity.idle().is_some());
        let (using, open) = activity.begin();
        assert!(open && activity.idle().is_none());
        assert!(activity.close_if_unused().is_none(), "it is used");
        drop(using);
        let closed = activity.close_if_unused().unwrap();
        let (waiting, open) = activity.begin();
        assert!(!open && activity.is_closed());
        drop(closed);
        assert!(!activity.is_closed() && activity.idle().is_none());
        drop(waiting);
        assert!(activity.idle().is_some());
        assert_eq!(activity.uses.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_use_that_ends_leaves_it_just_used() {
        let activity = Activity::new();
        let (using, _) = activity.begin();
        std::thread::sleep(Duration::from_millis(20));
        let ended = Instant::now();
        drop(using);
        assert!(activity.idle().unwrap() <= ended.elapsed() + Duration::from_millis(1));
    }

    /// Either the use is seen by who closes, or it sees the closing; never neither.
    #[test]
    fn no_use_slips_past_a_closing() {
        for _ in 0..2000 {
            let activity = Activity::new();
            let closer = Arc::clone(&activity);
            let closing = std::thread::spawn(move || closer.close_if_unused());
            let (using, open) = activity.begin();
            let closed = closing.join().unwrap();
            assert!(open != closed.is_some(), "open {open}, {closed:?}");
            drop((using, closed));
            assert_eq!(activity.uses.load(Ordering::Acquire), 0);
        }
    }

    #[tokio::test]
    async fn a_body_counts_by_its_pieces_or_until_its_end() {
        let activity = Activity::new();
        let mut counted = by_pieces(body("x"), &activity);
        assert_eq!(counted.size_hint().exact(), Some(1));
        std::thread::sleep(Duration::from_millis(20));
        assert!(activity.idle().unwrap() >= Duration::from_millis(20));
        let begun = Instant::now();
        counted.frame().await.unwrap().unwrap();
        assert!(activity.idle().unwrap() <= begun.elapsed() + Duration::from_millis(1));
        let mut whole = as_a_whole(body("x"), activity.begin().0);
        whole.frame().await.unwrap().unwrap();
        assert!(activity.idle().is_none(), "its end is not read");
        assert!(whole.frame().await.is_none());
        assert!(activity.idle().is_some());
        drop(whole);
        drop(as_a_whole(body("x"), activity.begin().0));
        assert!(activity.idle().is_some(), "nobody reads it");
    }
}
