//! Which addresses were given out under which names.
//!
//! A pair lives an hour after it was last given out, longer than most answers may be
//! kept, since programs keep addresses longer than they may. It goes into snapshots, so
//! that a guest that goes on need not ask again what it knows:
//!
//! ```text
//! "PDNM" | version 1 | count u16 | pairs
//! pair: 4 or 6 | address | seconds left u16 | length u8 | name
//! ```

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pairs of address and name. A long session of browsing has some hundreds.
const PAIRS: usize = 4096;

/// All pairs as bytes; half a snapshot's smallest layer.
const BYTES: usize = 256 << 10;

/// How long a pair lives.
const LIFE: Duration = Duration::from_secs(3600);

const MAGIC: &[u8; 4] = b"PDNM";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 7;
const NAME_BYTES: usize = 253;

/// The map from addresses to names.
#[derive(Debug, Default)]
pub(crate) struct Names {
    by_address: HashMap<IpAddr, Vec<Pair>>,
    pairs: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Pair {
    name: Arc<str>,
    until: Instant,
}

fn pair_bytes(address: IpAddr, name: &str) -> usize {
    let address = if address.is_ipv4() { 4 } else { 16 };
    1 + address + 2 + 1 + name.len()
}

/// Whether it is a name that a rule could match: lower case, ASCII, no dot at the end.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES).contains(&name.len())
        && name.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte)
                })
        })
}

impl Names {
    /// Notes that `address` was given out as `name`.
    pub(crate) fn insert(&mut self, address: IpAddr, name: &str, now: Instant) {
        self.insert_until(address, name, now + LIFE, now);
    }

    fn insert_until(&mut self, address: IpAddr, name: &str, until: Instant, now: Instant) {
        if !is_name(name) {
            return;
        }
        let known = self.by_address.entry(address).or_default();
        if let Some(pair) = known.iter_mut().find(|pair| &*pair.name == name) {
            pair.until = pair.until.max(until);
            return;
        }
        known.push(Pair {
            name: name.into(),
            until,
        });
        self.pairs += 1;
        self.bytes += pair_bytes(address, name);
        if self.pairs > PAIRS || self.bytes + HEADER_BYTES > BYTES {
            self.make_room(now);
        }
    }

    /// The names of an address.
    pub(crate) fn of(&self, address: IpAddr, now: Instant) -> Vec<Arc<str>> {
        let known = self.by_address.get(&address);
        let live = known.into_iter().flatten().filter(|pair| pair.until > now);
        live.map(|pair| Arc::clone(&pair.name)).collect()
    }

    /// Forgets what has ended and an eighth of the rest, oldest first: a guest that asks
    /// for ever new names pays for it once in 512 names.
    fn make_room(&mut self, now: Instant) {
        let mut ends: Vec<Instant> = self
            .by_address
            .values()
            .flatten()
            .map(|pair| pair.until)
            .collect();
        ends.sort_unstable();
        let oldest_kept = ends[ends.len() / 8].max(now);
        self.by_address.retain(|_, pairs| {
            pairs.retain(|pair| pair.until > oldest_kept);
            !pairs.is_empty()
        });
        let left = self.by_address.iter();
        let sizes = left
            .flat_map(|(address, pairs)| pairs.iter().map(|pair| pair_bytes(*address, &pair.name)));
        (self.pairs, self.bytes) = sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
    }

    /// The map as bytes.
    pub(crate) fn to_bytes(&self, now: Instant) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.bytes);
        bytes.extend(MAGIC);
        bytes.push(VERSION);
        let mut count = 0_u16;
        bytes.extend(count.to_be_bytes());
        for (address, pairs) in &self.by_address {
            for pair in pairs.iter().filter(|pair| pair.until > now) {
                let left = (pair.until - now).min(LIFE).as_secs();
                write_pair(
                    &mut bytes,
                    *address,
                    &pair.name,
                    u16::try_from(left).unwrap_or(0),
                );
                count += 1;
            }
        }
        bytes[5..HEADER_BYTES].copy_from_slice(&count.to_be_bytes());
        bytes
    }

    /// The map that [`Names::to_bytes`] wrote; an empty one where these are other bytes.
    /// The time in between does not count: nor did it for the guest.
    pub(crate) fn from_bytes(bytes: &[u8], now: Instant) -> Self {
        let mut names = Self::default();
        let Some(pairs) = read_pairs(bytes) else {
            return names;
        };
        for (address, name, left) in pairs {
            let left = Duration::from_secs(left.into()).min(LIFE);
            names.insert_until(address, name, now + left, now);
        }
        names
    }
}

fn write_pair(bytes: &mut Vec<u8>, address: IpAddr, name: &str, left: u16) {
    match address {
        IpAddr::V4(address) => {
            bytes.push(4);
            bytes.extend(address.octets());
        }
        IpAddr::V6(address) => {
            bytes.push(6);
            bytes.extend(address.octets());
        }
    }
    bytes.extend(left.to_be_bytes());
    // A name has at most 253 bytes.
    bytes.push(u8::try_from(name.len()).unwrap_or(0));
    bytes.extend(name.as_bytes());
}

fn read_pairs(bytes: &[u8]) -> Option<Vec<(IpAddr, &str, u16)>> {
    if bytes.len() > BYTES {
        return None;
    }
    let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(&[VERSION])?;
    let (count, mut rest) = rest.split_first_chunk()?;
    let count = usize::from(u16::from_be_bytes(*count));
    if count > PAIRS {
        return None;
    }
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        let (pair, behind) = read_pair(rest)?;
        pairs.push(pair);
        rest = behind;
    }
    rest.is_empty().then_some(pairs)
}

fn read_pair(bytes: &[u8]) -> Option<((IpAddr, &str, u16), &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    let (address, rest): (IpAddr, _) = match kind {
        4 => {
            let (octets, rest) = rest.split_first_chunk::<4>()?;
            (Ipv4Addr::from(*octets).into(), rest)
        }
        6 => {
            let (octets, rest) = rest.split_first_chunk::<16>()?;
            (Ipv6Addr::from(*octets).into(), rest)
        }
        _ => return None,
    };
    let (left, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let name = std::str::from_utf8(name).ok()?;
    Some(((address, name, u16::from_be_bytes(*left)), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(last: u8) -> IpAddr {
        [198, 51, 100, last].into()
    }

    #[test]
    fn a_pair_lives_an_hour_from_the_last_time() {
        let mut names = Names::default();
        let start = Instant::now();
        let minutes = |count: u64| start + Duration::from_secs(60 * count);
        names.insert(address(1), "a.example.org", start);
        names.insert(address(1), "b.example.org", start);
        names.insert(address(1), "a.example.org", minutes(30));
        assert_eq!(names.of(address(1), minutes(59)).len(), 2);
        assert_eq!(names.of(address(1), minutes(61)), ["a.example.org".into()]);
        assert!(names.of(address(1), minutes(91)).is_empty());
        assert!(names.of(address(2), start).is_empty());
    }

    #[test]
    fn it_is_bounded_and_the_oldest_go() {
        let mut names = Names::default();
        let start = Instant::now();
        let long = "x".repeat(60);
        for number in 0..20_000_u32 {
            let address = IpAddr::from((0xc633_0000 + number).to_be_bytes());
            let name = format!("{long}.{long}.n{number}");
            names.insert(address, &name, start + Duration::from_millis(number.into()));
            assert!(names.pairs <= PAIRS && names.bytes <= BYTES);
        }
        let now = start + Duration::from_secs(20);
        assert_eq!(
            names
                .of(IpAddr::from(0xc633_4e1f_u32.to_be_bytes()), now)
                .len(),
            1
        );
        assert!(names.of(address(0), now).is_empty());
        assert!(names.to_bytes(now).len() <= BYTES);
    }

    #[test]
    fn it_survives_as_bytes_with_the_time_that_is_left() {
        let mut names = Names::default();
        let start = Instant::now();
        names.insert(address(1), "a.example.org", start);
        names.insert("2001:db8::1".parse().unwrap(), "b.example.org", start);
        names.insert(address(1), "Bad Name", start);
        let bytes = names.to_bytes(start + Duration::from_secs(600));
        let later = start + Duration::from_secs(1_000_000);
        let back = Names::from_bytes(&bytes, later);
        assert_eq!(back.pairs, 2);
        assert_eq!(
            back.of(address(1), later + Duration::from_secs(2990)).len(),
            1
        );
        assert!(
            back.of(address(1), later + Duration::from_secs(3010))
                .is_empty()
        );
    }

    proptest! {
        #[test]
        fn other_bytes_are_an_empty_map(
            garbage in proptest::collection::vec(any::<u8>(), 0..200),
            at in 0_usize..60,
            bit in 0_u8..8,
        ) {
            let now = Instant::now();
            Names::from_bytes(&garbage, now);
            let mut headed = b"PDNM\x01\0\x02".to_vec();
            headed.extend(&garbage);
            Names::from_bytes(&headed, now);
            let mut names = Names::default();
            names.insert(address(1), "a.example.org", now);
            names.insert("2001:db8::1".parse().unwrap(), "b.example.org", now);
            let mut bytes = names.to_bytes(now);
            prop_assert_eq!(Names::from_bytes(&bytes[..bytes.len() - 1], now).pairs, 0);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let read = Names::from_bytes(&bytes, now);
            prop_assert!(read.pairs <= 2);
        }
    }
}
