import "uplot/dist/uPlot.min.css";
import "./style.css";
import { render } from "preact";
import { App } from "./app";
import { connect } from "./session";

render(<App />, document.getElementById("console")!);
void connect();
