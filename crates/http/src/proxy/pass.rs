//! What a request shows at a port that asks for a token, taken out before it goes in.
//!
//! A program sends the token in a header. A browser is given an address with
//! `?pando_token=`, is sent on to the same address without it, and keeps a cookie.

use http::{HeaderMap, HeaderValue, Uri, header};

/// Headers that carry a traffic token; the first is E2B's.
pub(super) const TOKEN_HEADERS: [&str; 2] = ["e2b-traffic-access-token", "x-pando-port-token"];

/// The query's parameter, and the cookie.
const TOKEN: &str = "pando_token";

/// Tokens of one request that are looked at.
const MAX_TOKENS: usize = 8;

/// The tokens of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// From wherever they came.
    pub(super) tokens: Vec<String>,
    /// The one in the query.
    pub(super) in_query: Option<String>,
}

/// Takes the tokens out of a request.
pub(super) fn take(uri: &mut Uri, headers: &mut HeaderMap) -> Shown {
    let mut shown = Shown::default();
    for name in TOKEN_HEADERS {
        let values = headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok());
        shown
            .tokens
            .extend(values.map(|value| value.trim().to_owned()));
        headers.remove(name);
    }
    take_cookies(headers, &mut shown);
    take_query(uri, &mut shown);
    shown.tokens.truncate(MAX_TOKENS);
    shown
}

fn take_cookies(headers: &mut HeaderMap, shown: &mut Shown) {
    let is_ours = |cookie: &&str| cookie.trim().split('=').next() == Some(TOKEN);
    let lines: Vec<String> = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|line| line.to_str().ok().map(str::to_owned))
        .collect();
    if !lines
        .iter()
        .flat_map(|line| line.split(';'))
        .any(|cookie| is_ours(&cookie))
    {
        return;
    }
    headers.remove(header::COOKIE);
    for line in lines {
        let (ours, others): (Vec<_>, Vec<_>) = line.split(';').partition(is_ours);
        let tokens = ours.iter().filter_map(|cookie| cookie.split_once('='));
        shown
            .tokens
            .extend(tokens.map(|(_, token)| token.trim().to_owned()));
        let others = others.join(";");
        let others = others.trim();
        if let Ok(value) = HeaderValue::from_str(others)
            && !others.is_empty()
        {
            headers.append(header::COOKIE, value);
        }
    }
}

fn take_query(uri: &mut Uri, shown: &mut Shown) {
    let Some(query) = uri.query() else { return };
    let is_ours = |pair: &&str| pair.split('=').next() == Some(TOKEN);
    let (ours, others): (Vec<_>, Vec<_>) = query.split('&').partition(is_ours);
    let Some((_, token)) = ours.first().and_then(|pair| pair.split_once('=')) else {
        return;
    };
    let (path, token) = (uri.path(), token.to_owned());
    let rest = match others.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", others.join("&")),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = rest.parse().ok();
    if let Ok(without) = Uri::from_parts(parts) {
        *uri = without;
    }
    shown.tokens.push(token.clone());
    shown.in_query = Some(token);
}

/// The cookie that lets a browser in from now on, until it is closed.
pub(super) fn cookie(token: &str, https: bool) -> Option<HeaderValue> {
    // Only what a token can be: nothing of the query gets into a header otherwise.
    if !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let secure = if https { "; Secure" } else { "" };
    format!("{TOKEN}={token}; Path=/; HttpOnly; SameSite=Lax{secure}")
        .try_into()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_everywhere_and_left_nowhere() {
        let mut uri: Uri = "/a?x=1&pando_token=q1&y=2".parse().unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("e2b-traffic-access-token", "h1"),
            ("x-pando-port-token", " h2 "),
            ("cookie", "a=1; pando_token=c1; b=2"),
            ("cookie", "pando_token=c2"),
            ("accept", "x"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let shown = take(&mut uri, &mut headers);
        assert_eq!(shown.tokens, ["h1", "h2", "c1", "c2", "q1"]);
        assert_eq!(shown.in_query.as_deref(), Some("q1"));
        assert_eq!(uri, "/a?x=1&y=2");
        let left: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(left, [("accept", "x"), ("cookie", "a=1; b=2")]);
    }

    #[test]
    fn a_request_without_a_token_is_left_alone() {
        let mut uri: Uri = "/a?pando_tokens=1&q=pando_token".parse().unwrap();
        let mut headers = HeaderMap::new();
        headers.append("cookie", "xpando_token=1;b=2".parse().unwrap());
        let (before, shown) = (uri.clone(), take(&mut uri, &mut headers));
        assert_eq!((shown, uri), (Shown::default(), before));
        assert_eq!(headers["cookie"], "xpando_token=1;b=2");
        assert_eq!(cookie("a\r\nSet-Cookie: b", false), None);
    }
}
