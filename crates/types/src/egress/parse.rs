//! Reading entries.

use std::net::IpAddr;
use std::str::FromStr;

use super::{EgressEntry, EgressError, EgressFault, EgressHost, EgressProtocol, network_of};

/// Longest entry: the longest name, a star, a port and a protocol.
const ENTRY_BYTES: usize = 280;

/// Characters of a faulty entry that its error repeats.
const SHOWN_CHARACTERS: usize = 80;

const NAME_BYTES: usize = 253;
const LABEL_BYTES: usize = 63;

/// The beginning of a text that somebody sent, for an error.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARACTERS).collect()
}

/// Bits of an address of this kind.
pub(super) fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl FromStr for EgressEntry {
    type Err = EgressError;

    fn from_str(text: &str) -> Result<Self, EgressError> {
        entry(text).map_err(|fault| EgressError::Entry {
            entry: shown(text),
            fault,
        })
    }
}

fn entry(text: &str) -> Result<EgressEntry, EgressFault> {
    if text.is_empty() {
        return Err(EgressFault::Empty);
    }
    if text.len() > ENTRY_BYTES {
        // A name that is too long is the likely reason, and the better hint.
        return Err(if text.contains('.') {
            EgressFault::LongName
        } else {
            EgressFault::TooLong
        });
    }
    if text.contains("://") {
        return Err(EgressFault::Url);
    }
    let (rest, protocol) = split_protocol(text)?;
    let (host, port) = split_port(rest)?;
    if protocol == Some(EgressProtocol::Icmp) && port.is_some() {
        return Err(EgressFault::IcmpPort);
    }
    Ok(EgressEntry {
        host: parse_host(host)?,
        port,
        protocol,
    })
}

fn split_protocol(text: &str) -> Result<(&str, Option<EgressProtocol>), EgressFault> {
    let Some((rest, last)) = text.rsplit_once('/') else {
        return Ok((text, None));
    };
    let protocol = match last.to_ascii_lowercase().as_str() {
        "tcp" => EgressProtocol::Tcp,
        "udp" => EgressProtocol::Udp,
        "icmp" => EgressProtocol::Icmp,
        // What begins with a digit is a prefix's length, right or wrong.
        other if other.starts_with(|first: char| first.is_ascii_digit()) => {
            return Ok((text, None));
        }
        "" => return Err(EgressFault::Url),
        _ => return Err(EgressFault::Protocol),
    };
    Ok((rest, Some(protocol)))
}

fn split_port(text: &str) -> Result<(&str, Option<u16>), EgressFault> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').ok_or(EgressFault::Brackets)?;
        if !host.contains(':') {
            return Err(EgressFault::Brackets);
        }
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(parse_port(port)?))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(EgressFault::Brackets),
        };
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => Ok((host, Some(parse_port(port)?))),
        _ => Ok((text, None)),
    }
}

fn parse_port(text: &str) -> Result<u16, EgressFault> {
    match decimal::<u16>(text) {
        Some(0) | None => Err(EgressFault::Port),
        Some(port) => Ok(port),
    }
}

/// A number without sign; `parse` alone would take `+1`.
fn decimal<Number: FromStr>(text: &str) -> Option<Number> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn parse_host(text: &str) -> Result<EgressHost, EgressFault> {
    if let Some((address, prefix)) = text.split_once('/') {
        return parse_network(address, prefix);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return network(address, bits(address));
    }
    if text.contains(':') {
        return Err(EgressFault::Address);
    }
    match text {
        "" => Err(EgressFault::Empty),
        "*" | "*.*" | "*." => Err(EgressFault::Everything),
        _ => match text.strip_prefix("*.") {
            Some(zone) => Ok(EgressHost::Wildcard(parse_name(zone)?)),
            None => Ok(EgressHost::Name(parse_name(text)?)),
        },
    }
}

fn parse_network(address: &str, prefix: &str) -> Result<EgressHost, EgressFault> {
    // A name with a slash is a URL's host and path.
    let address: IpAddr = address.parse().map_err(|_| {
        if address.contains(':') || address.bytes().all(|byte| b"0123456789.".contains(&byte)) {
            EgressFault::Address
        } else {
            EgressFault::Url
        }
    })?;
    let most = bits(address);
    match decimal::<u8>(prefix) {
        Some(prefix) if prefix <= most => network(address, prefix),
        _ => Err(EgressFault::Prefix(most)),
    }
}

fn network(address: IpAddr, prefix: u8) -> Result<EgressHost, EgressFault> {
    let mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    if mapped {
        return Err(EgressFault::Mapped);
    }
    match network_of(address, prefix) {
        Some(lowest) if lowest == address => Ok(EgressHost::Network { address, prefix }),
        Some(lowest) => Err(EgressFault::HostBits(format!("{lowest}/{prefix}"))),
        None => Err(EgressFault::Prefix(bits(address))),
    }
}

fn parse_name(text: &str) -> Result<String, EgressFault> {
    if !text.is_ascii() {
        return Err(EgressFault::NotAscii);
    }
    if text.contains('*') {
        return Err(EgressFault::Star);
    }
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if name.len() > NAME_BYTES {
        return Err(EgressFault::LongName);
    }
    if !name.split('.').all(is_label) {
        return Err(EgressFault::Name);
    }
    // Programs read `10.1` and `0x7f.1` as addresses; no top-level domain is a number.
    let last = name.rsplit('.').next().unwrap_or_default();
    let hexadecimal = last
        .strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if hexadecimal || last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(EgressFault::Address);
    }
    Ok(name)
}

fn is_label(label: &str) -> bool {
    let characters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=LABEL_BYTES).contains(&label.len())
        && label.bytes().all(characters)
        && !label.starts_with('-')
        && !label.ends_with('-')
}
