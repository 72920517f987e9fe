// Search without a server: browsers start no workers on pages from a disk (file://), so there a hidden
// frame runs the search's script in place of one. The search asks for this name, and for importScripts.

class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    this.frame = document.body.appendChild(frame);
    const inside = frame.contentWindow;
    const load = (address) =>
      new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        Object.assign(script, { src: address, onload: done, onerror: failed });
        inside.document.body.append(script);
      });
    inside.document.open();
    inside.document.write("<!doctype html><body></body>");
    inside.document.close();
    inside.postMessage = (data) => {
      const message = new MessageEvent("message", { data });
      this.dispatchEvent(message);
      this.onmessage?.(message);
    };
    inside.importScripts = (...addresses) =>
      addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
    this.ready = load(url);
  }

  async postMessage(data) {
    await this.ready;
    this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
  }

  terminate() {
    this.frame.remove();
  }
}

window.IFrameWorker = IFrameWorker;
if (location.protocol === "file:") window.Worker = IFrameWorker;
