use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pando_types::EgressEntry;
use proptest::prelude::*;

use super::*;

/// Rules as people write them; the last word may be `default deny`.
fn policy(rules: &[&str]) -> EgressPolicy {
    let (default, rules) = match rules {
        [rules @ .., "default deny"] => (EgressAction::Deny, rules),
        rules => (EgressAction::Allow, rules),
    };
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    EgressPolicy::ordered(rules, default).unwrap()
}

fn target(text: &str, port: u16, protocol: EgressProtocol) -> Target {
    Target {
        address: text.parse().unwrap(),
        port: (protocol != EgressProtocol::Icmp).then_some(port),
        protocol: Some(protocol),
        own: false,
    }
}

fn tcp(rules: &[&str], address: &str, port: u16) -> Verdict {
    let target = target(address, port, EgressProtocol::Tcp);
    decide(&policy(rules), &target, &[], Claim::Unknown)
}

/// By a policy of names, for an address that was given out as `name`.
fn named(rules: &[&str], name: &str, port: u16, claim: Claim<'_>) -> Verdict {
    let target = target("198.51.100.7", port, EgressProtocol::Tcp);
    decide(&policy(rules), &target, &[name.into()], claim)
}

fn deny(rule: &str) -> Verdict {
    Verdict::Deny(rule.into())
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = [
        "deny 198.51.100.0/24:22",
        "allow 198.51.100.0/24",
        "default deny",
    ];
    assert_eq!(
        tcp(&rules, "198.51.100.1", 22),
        deny("deny 198.51.100.0/24:22")
    );
    assert_eq!(tcp(&rules, "198.51.100.1", 23), Verdict::Allow);
    assert_eq!(tcp(&rules, "203.0.113.1", 23), deny("default deny"));
    let reversed = ["allow 198.51.100.0/24", "deny 198.51.100.0/24:22"];
    assert_eq!(tcp(&reversed, "198.51.100.1", 22), Verdict::Allow);
}

#[test]
fn ports_and_protocols_narrow_a_rule() {
    let rules = policy(&[
        "allow 198.51.100.1:53/udp",
        "allow 198.51.100.2/icmp",
        "default deny",
    ]);
    let verdict = |address, port, protocol| {
        decide(
            &rules,
            &target(address, port, protocol),
            &[],
            Claim::Unknown,
        )
    };
    assert_eq!(
        verdict("198.51.100.1", 53, EgressProtocol::Udp),
        Verdict::Allow
    );
    assert_ne!(
        verdict("198.51.100.1", 53, EgressProtocol::Tcp),
        Verdict::Allow
    );
    assert_ne!(
        verdict("198.51.100.1", 54, EgressProtocol::Udp),
        Verdict::Allow
    );
    assert_ne!(
        verdict("198.51.100.1", 0, EgressProtocol::Icmp),
        Verdict::Allow
    );
    assert_eq!(
        verdict("198.51.100.2", 0, EgressProtocol::Icmp),
        Verdict::Allow
    );
    assert_ne!(
        verdict("198.51.100.2", 1, EgressProtocol::Tcp),
        Verdict::Allow
    );
}

#[test]
fn protected_ranges_stand_before_all_rules() {
    for (address, range) in [
        ("0.0.0.1", "0.0.0.0/8"),
        ("127.0.0.1", "127.0.0.0/8"),
        ("10.255.255.255", "10.0.0.0/8"),
        ("172.31.0.1", "172.16.0.0/12"),
        ("192.168.1.1", "192.168.0.0/16"),
        ("100.127.0.1", "100.64.0.0/10"),
        ("169.254.169.254", "169.254.0.0/16"),
        ("168.63.129.16", "168.63.129.16/32"),
        ("224.0.0.251", "224.0.0.0/4"),
        ("240.0.0.1", "240.0.0.0/4"),
        ("255.255.255.255", "240.0.0.0/4"),
        ("::1", "::/96"),
        ("::10.0.0.1", "::/96"),
        ("::ffff:8.8.8.8", "::ffff:0.0.0.0/96"),
        ("64:ff9b::8.8.8.8", "64:ff9b::/96"),
        ("2002:808:808::1", "2002::/16"),
        ("fd00:ec2::254", "fc00::/7"),
        ("fe80::1", "fe80::/10"),
        ("ff02::1", "ff00::/8"),
    ] {
        let rules = ["allow 0.0.0.0/0", "allow ::/0", "allow *.example.org"];
        assert_eq!(
            tcp(&rules, address, 80),
            deny(&format!("protected range {range}")),
            "{address}"
        );
    }
    for address in [
        "8.8.8.8",
        "198.51.100.1",
        "203.0.113.1",
        "192.0.2.1",
        "172.32.0.1",
        "11.0.0.1",
        "2001:db8::1",
        "2606:4700::1",
    ] {
        assert_eq!(tcp(&[], address, 80), Verdict::Allow, "{address}");
    }
}

#[test]
fn a_rule_inside_a_protected_range_opens_that_much() {
    let rules = ["allow 10.1.0.0/16:5432/tcp"];
    assert_eq!(tcp(&rules, "10.1.2.3", 5432), Verdict::Allow);
    for (address, port) in [("10.1.2.3", 5433), ("10.2.0.1", 5432)] {
        assert_eq!(
            tcp(&rules, address, port),
            deny("protected range 10.0.0.0/8")
        );
    }
    assert_eq!(tcp(&["allow 10.0.0.0/8"], "10.2.3.4", 1), Verdict::Allow);
    assert_eq!(
        tcp(&["allow 8.0.0.0/6"], "10.2.3.4", 1),
        deny("protected range 10.0.0.0/8")
    );
    // Opened is not allowed: the rules still count, in their order.
    let rules = ["deny 10.1.2.3", "allow 10.1.0.0/16"];
    assert_eq!(tcp(&rules, "10.1.2.3", 1), deny("deny 10.1.2.3"));
    assert_eq!(
        tcp(&["allow fd00::/8"], "fd00:ec2::254", 80),
        deny("protected range fd00:ec2::254/128")
    );
    assert_eq!(tcp(&["allow ::1"], "::1", 80), Verdict::Allow);
}

#[test]
fn the_hosts_own_address_is_opened_by_itself_alone() {
    let own = |rules: &[&str], address| {
        let mut target = target(address, 80, EgressProtocol::Tcp);
        target.own = true;
        decide(&policy(rules), &target, &[], Claim::Unknown)
    };
    assert_eq!(
        own(&[], "198.51.100.1"),
        deny("protected range 198.51.100.1/32")
    );
    assert_eq!(
        own(&["allow 198.51.100.0/24"], "198.51.100.1"),
        deny("protected range 198.51.100.1/32")
    );
    assert_eq!(own(&["allow 198.51.100.1"], "198.51.100.1"), Verdict::Allow);
    assert_eq!(
        own(&["allow 10.0.0.0/8"], "10.0.0.1"),
        deny("protected range 10.0.0.1/32")
    );
    assert_eq!(own(&["allow 10.0.0.1"], "10.0.0.1"), Verdict::Allow);
}

#[test]
fn ipv4_inside_ipv6_is_judged_by_both() {
    assert_eq!(
        tcp(&["allow 64:ff9b::/96"], "64:ff9b::8.8.8.8", 80),
        Verdict::Allow
    );
    assert_eq!(
        tcp(&["allow 64:ff9b::/96"], "64:ff9b::10.0.0.1", 80),
        deny("protected range 10.0.0.0/8")
    );
    assert_eq!(
        tcp(&["allow 2002::/16"], "2002:7f00:1::1", 80),
        deny("protected range 127.0.0.0/8")
    );
}

#[test]
fn a_name_needs_the_address_and_the_claim() {
    let rules = ["allow *.good.org", "default deny"];
    let unknown = |name| named(&rules, name, 443, Claim::Unknown);
    assert_eq!(unknown("a.good.org"), Verdict::Inspect);
    assert_eq!(unknown("good.org"), deny("default deny"));
    let claimed = |claim| named(&rules, "a.good.org", 443, claim);
    assert_eq!(claimed(Claim::Named("a.good.org")), Verdict::Allow);
    assert_eq!(claimed(Claim::Named("b.good.org")), Verdict::Allow);
    assert_eq!(claimed(Claim::Named("evil.org")), deny("default deny"));
    assert_eq!(claimed(Claim::Nameless("no SNI")), deny("no SNI"));
    assert_eq!(claimed(Claim::Opaque), deny("default deny"));
    assert_eq!(
        named(&rules, "evil.org", 443, Claim::Named("a.good.org")),
        deny("default deny")
    );
    assert_eq!(
        named(&rules, "a.good.org", 22, Claim::Opaque),
        Verdict::Allow
    );
    assert_eq!(
        named(&rules, "evil.org", 22, Claim::Opaque),
        deny("default deny")
    );
}

#[test]
fn a_denied_name_is_refused_where_it_is_named() {
    let rules = ["deny evil.org"];
    let claimed = |name, claim| named(&rules, name, 443, claim);
    assert_eq!(claimed("other.org", Claim::Unknown), Verdict::Inspect);
    assert_eq!(
        claimed("other.org", Claim::Named("evil.org")),
        deny("deny evil.org")
    );
    assert_eq!(
        claimed("evil.org", Claim::Named("other.org")),
        Verdict::Allow
    );
    assert_eq!(
        claimed("evil.org", Claim::Nameless("no SNI")),
        deny("deny evil.org")
    );
    assert_eq!(
        claimed("other.org", Claim::Nameless("no SNI")),
        Verdict::Allow
    );
    assert_eq!(claimed("evil.org", Claim::Opaque), deny("deny evil.org"));
}

#[test]
fn what_is_decided_before_any_name_is_not_inspected() {
    let rules = ["allow 198.51.100.0/24", "deny evil.org", "default deny"];
    assert_eq!(named(&rules, "x.org", 443, Claim::Unknown), Verdict::Allow);
    let rules = ["deny 198.51.100.0/24", "allow x.org"];
    assert_eq!(
        named(&rules, "x.org", 443, Claim::Unknown),
        deny("deny 198.51.100.0/24")
    );
    let rules = ["deny evil.org:22", "allow good.org:22"];
    assert_eq!(named(&rules, "x.org", 443, Claim::Unknown), Verdict::Allow);
}

#[test]
fn domain_rules_close_what_names_cannot_be_seen_in() {
    let verdict = |rules: &[&str], port, protocol| {
        let target = target("198.51.100.7", port, protocol);
        decide(
            &policy(rules),
            &target,
            &["a.good.org".into()],
            Claim::Unknown,
        )
    };
    let (udp, tcp) = (EgressProtocol::Udp, EgressProtocol::Tcp);
    for rules in [
        &["allow *.good.org"][..],
        &["deny evil.org:443/tcp"],
        &["allow *.good.org", "default deny"],
    ] {
        assert_eq!(verdict(rules, 443, udp), deny("UDP/443 under domain rules"));
        assert_eq!(
            verdict(rules, 53, udp),
            deny("another name server under domain rules")
        );
        assert_eq!(
            verdict(rules, 53, tcp),
            deny("another name server under domain rules")
        );
    }
    let by_name = ["allow *.good.org", "default deny"];
    assert_eq!(verdict(&by_name, 123, udp), Verdict::Allow);
    assert_eq!(
        verdict(&["deny *.good.org"], 123, udp),
        deny("deny *.good.org")
    );
    assert_eq!(
        verdict(&["allow 198.51.100.7", "deny evil.org"], 53, udp),
        Verdict::Allow
    );
    assert_eq!(verdict(&by_name, 0, EgressProtocol::Icmp), Verdict::Allow);
}

#[test]
fn names_are_resolved_by_the_same_list() {
    let may = |rules: &[&str], name| may_resolve(&policy(rules), name);
    let rules = [
        "deny evil.good.org:22",
        "allow *.good.org:443/tcp",
        "default deny",
    ];
    assert_eq!(may(&rules, "a.good.org"), Ok(()));
    assert_eq!(
        may(&rules, "evil.good.org"),
        Err("deny evil.good.org:22".into())
    );
    assert_eq!(may(&rules, "good.org"), Err("default deny".into()));
    assert_eq!(may(&[], "good.org"), Ok(()));
    assert_eq!(
        may(&["allow good.org", "deny 0.0.0.0/0"], "evil.org"),
        Err("deny 0.0.0.0/0".into())
    );
    assert_eq!(
        may(&["deny 0.0.0.0/0:25", "deny 10.0.0.0/8"], "evil.org"),
        Ok(())
    );
    assert_eq!(may(&["allow 0.0.0.0/0", "default deny"], "x.org"), Ok(()));
}

fn some_address() -> impl Strategy<Value = IpAddr> {
    let v4 = any::<[u8; 4]>().prop_map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
    let near = (
        prop::sample::select(vec![10_u8, 127, 169, 172, 192, 100, 198]),
        any::<[u8; 3]>(),
    )
        .prop_map(|(first, [b, c, d])| IpAddr::V4(Ipv4Addr::new(first, b, c, d)));
    let v6 = any::<[u8; 16]>().prop_map(|octets| IpAddr::V6(Ipv6Addr::from(octets)));
    let inside = (
        prop::sample::select(vec!["::ffff:0:0", "64:ff9b::", "2002::", "fd00::", "::"]),
        any::<u32>(),
    )
        .prop_map(|(base, low)| {
            let base: Ipv6Addr = base.parse().unwrap();
            IpAddr::V6(Ipv6Addr::from(u128::from(base) | u128::from(low)))
        });
    prop_oneof![v4, near, v6, inside]
}

fn network(address: IpAddr, prefix: u8) -> EgressEntry {
    let (bits, prefix) = match address {
        IpAddr::V4(_) => (32, prefix % 33),
        IpAddr::V6(_) => (128, prefix % 129),
    };
    let cut = match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(bits - u32::from(prefix)).unwrap_or(0);
            IpAddr::from((u32::from(v4) & mask).to_be_bytes())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(bits - u32::from(prefix)).unwrap_or(0);
            IpAddr::from((u128::from(v6) & mask).to_be_bytes())
        }
    };
    EgressEntry {
        host: EgressHost::Network {
            address: cut,
            prefix,
        },
        port: None,
        protocol: None,
    }
}

fn some_rule() -> impl Strategy<Value = EgressRule> {
    let host = prop_oneof![
        (some_address(), any::<u8>()).prop_map(|(address, prefix)| network(address, prefix).host),
        prop::sample::select(vec!["a.org", "b.org", "x.a.org"])
            .prop_map(|name| EgressHost::Name(name.into())),
        prop::sample::select(vec!["a.org", "b.org", "org"])
            .prop_map(|name| EgressHost::Wildcard(name.into())),
    ];
    let protocol = prop::option::of(prop::sample::select(vec![
        EgressProtocol::Tcp,
        EgressProtocol::Udp,
    ]));
    let port = prop::option::of(prop::sample::select(vec![22, 53, 80, 443]));
    (any::<bool>(), host, port, protocol).prop_map(|(allow, host, port, protocol)| EgressRule {
        action: if allow {
            EgressAction::Allow
        } else {
            EgressAction::Deny
        },
        entry: EgressEntry {
            host,
            port,
            protocol,
        },
    })
}

fn some_policy() -> impl Strategy<Value = EgressPolicy> {
    (prop::collection::vec(some_rule(), 0..6), any::<bool>()).prop_map(|(rules, allow)| {
        let default = if allow {
            EgressAction::Allow
        } else {
            EgressAction::Deny
        };
        EgressPolicy { rules, default }
    })
}

fn some_target() -> impl Strategy<Value = Target> {
    (
        some_address(),
        prop::sample::select(vec![22, 53, 80, 443]),
        prop::sample::select(vec![
            EgressProtocol::Tcp,
            EgressProtocol::Udp,
            EgressProtocol::Icmp,
        ]),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(address, port, protocol, own)| Target {
            address,
            port: (protocol != EgressProtocol::Icmp).then_some(port),
            protocol: Some(protocol),
            own,
        })
}

fn some_names() -> impl Strategy<Value = Vec<Arc<str>>> {
    prop::collection::vec(
        prop::sample::select(vec!["a.org", "b.org", "x.a.org", "c.net"]).prop_map(Arc::from),
        0..3,
    )
}

fn some_claim() -> impl Strategy<Value = Claim<'static>> {
    prop_oneof![
        Just(Claim::Opaque),
        Just(Claim::Nameless("no SNI")),
        prop::sample::select(vec!["a.org", "b.org", "x.a.org", "c.net"]).prop_map(Claim::Named),
    ]
}

fn is_closed(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Deny(rule) if rule.starts_with("protected range"))
}

proptest! {
    /// A rule says what it is as a string, and is read back.
    #[test]
    fn a_rule_travels_as_its_text(rule in some_rule()) {
        if !matches!(rule.entry.host, EgressHost::Network { address: IpAddr::V6(v6), .. } if v6.to_ipv4_mapped().is_some()) {
            prop_assert_eq!(rule.to_string().parse::<EgressRule>().unwrap(), rule);
        }
    }

    /// What was decided before the name was known holds for every name.
    #[test]
    fn what_is_decided_early_stays(
        policy in some_policy(),
        target in some_target(),
        names in some_names(),
        claim in some_claim(),
    ) {
        let early = decide(&policy, &target, &names, Claim::Unknown);
        let late = decide(&policy, &target, &names, claim);
        prop_assert_ne!(&late, &Verdict::Inspect);
        match early {
            Verdict::Inspect => prop_assert_eq!(target.protocol, Some(EgressProtocol::Tcp)),
            Verdict::Allow => prop_assert_eq!(late, Verdict::Allow),
            Verdict::Deny(_) => prop_assert!(matches!(late, Verdict::Deny(_))),
        }
    }

    /// The rules behind the first that matches by address do not matter, except that they
    /// may open a protected range.
    #[test]
    fn the_first_match_wins(
        policy in some_policy(),
        target in some_target(),
        prefix in any::<u8>(),
        action in any::<bool>(),
    ) {
        let first = EgressRule {
            action: if action { EgressAction::Allow } else { EgressAction::Deny },
            entry: network(target.address, prefix),
        };
        let mut longer = policy;
        longer.rules.insert(0, first);
        let verdict = decide(&longer, &target, &[], Claim::Unknown);
        if !is_closed(&verdict) {
            prop_assert_eq!(verdict == Verdict::Allow, action);
        }
    }

    /// A wider network never opens what a narrower one does not.
    #[test]
    fn widening_opens_nothing(target in some_target(), prefix in any::<u8>(), by in 1_u8..32) {
        let rule = |prefix| EgressRule {
            action: EgressAction::Allow,
            entry: network(target.address, prefix),
        };
        let verdict = |rule| {
            let policy = EgressPolicy { rules: vec![rule], default: EgressAction::Allow };
            decide(&policy, &target, &[], Claim::Unknown)
        };
        let bits = if target.address.is_ipv4() { 33 } else { 129 };
        let narrow = (u16::from(prefix) % bits) as u8;
        let wide = narrow.saturating_sub(by);
        if is_closed(&verdict(rule(narrow))) {
            prop_assert!(is_closed(&verdict(rule(wide))));
        }
    }

    /// Names, and networks around a range, open no protected address.
    #[test]
    fn names_and_the_world_open_nothing(
        target in some_target(),
        names in some_names(),
        claim in some_claim(),
    ) {
        let plain = decide(&policy(&[]), &target, &names, claim);
        let rules = policy(&["allow *.org", "allow a.org", "allow 0.0.0.0/0", "allow ::/0"]);
        if is_closed(&plain) {
            prop_assert!(is_closed(&decide(&rules, &target, &names, claim)));
        }
    }
}
