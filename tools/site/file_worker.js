// Browsers do not start workers for pages opened from a file. There, emulate a worker by a hidden iframe that runs the
// worker's script, so that the search works without a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = ""
      this.ready = new Promise(resolve => (this.frame.onload = resolve)).then(() => this.start(url))
      document.body.append(this.frame)
    }

    async start(url) {
      const inner = this.frame.contentWindow
      const load = source =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script")
          script.src = source
          script.onload = resolve
          script.onerror = reject
          inner.document.body.append(script)
        })
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
      inner.importScripts = async (...sources) => {
        for (const source of sources) await load(source)
      }
      await load(url)
    }

    async postMessage(data) {
      await this.ready
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data}))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
