/* The picture of a card that bookkit/frames.py wrote: drawn in Python, one for each step. stepper.js steps through them. Classic script. */
(function () {
  "use strict";

  const WIDE = 400; // of coursekit/show/drawing.py

  function picture(svg, data, steps, width) {
    BOOK.svg.set(svg, { viewBox: "0 0 " + WIDE + " " + data.high, height: data.high * width / WIDE });
    return function (number) { svg.innerHTML = '<g class="picture">' + steps[number] + "</g>"; };
  }

  BOOK.steppers.kinds.frames = { follow: data => data.frames, picture: picture };
})();
