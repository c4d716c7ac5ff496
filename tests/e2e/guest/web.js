// Fetches a page and says a word over WebSockets, plain and in TLS.
const crypto = require('crypto');
const clients = { ws: require('http'), wss: require('https') };

function echo(url) {
  const [scheme, rest] = url.split('://');
  const headers = {
    Connection: 'Upgrade',
    Upgrade: 'websocket',
    'Sec-WebSocket-Version': 13,
    'Sec-WebSocket-Key': crypto.randomBytes(16).toString('base64'),
  };
  return new Promise((done, fail) => {
    const request = clients[scheme].request(`http${scheme.slice(2)}://${rest}`, { headers });
    request.on('error', fail);
    request.on('response', (response) => fail(new Error(`status ${response.statusCode}`)));
    request.on('upgrade', (response, socket) => {
      const [text, mask] = [Buffer.from('a word'), crypto.randomBytes(4)];
      const masked = text.map((byte, at) => byte ^ mask[at % 4]);
      socket.write(Buffer.concat([Buffer.from([0x81, 0x80 | text.length]), mask, masked]));
      socket.once('data', (frame) => {
        socket.destroy();
        done(frame.subarray(2).toString());
      });
    });
    request.end();
  });
}

(async () => {
  for (const url of ['http://allowed.test.example/', 'https://allowed.test.example/']) {
    console.log((await (await fetch(url)).text()).trim());
  }
  console.log(await echo('ws://allowed.test.example/echo'));
  console.log(await echo('wss://allowed.test.example/echo'));
})();
