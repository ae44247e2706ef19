"""Files that DGL 2.1.0 wrote by `dgl.save_graphs`, without what is unused of their first page."""

from __future__ import annotations

import base64
import lzma

FILES = {
    # A graph of three types, as lists of edges.
    "coo": (
        "T>t=p0RR90|NsC0{{SDTQiMc*W$c-_7Ggax%Q%aVQ<6Ete?E<3mEk_s-$ktDO*#V;CsjpJ$nS~#ho8(Th9(soJy+-"
        "=CPjVoCL3N=bXm*yPCYJu*ISLdCR@H45RuWwuy%Ez%?7U=v%04IFSES=dGd7C^0N_O+`wd$JHM73WC)Si@JU!-"
        "io;64z+At%Mp|53b->j0-KoE)`>I6eyE`gpO<sig5~KQZ?<A8bC@d<&mK~6>dc2-"
        "o#>JWgH&N#~OBWweh5Y=VYF8&iplup|hy5iiN@zb#?GLpi^+zY_$7jF5U)dugt+Ql~$uci<3JGvbdE>y)Y&5@L?pNS78Zh0j"
        "1_~ynP*7U<IL`0iZjmaYPU>1Vrg9kP<t9`e+J!Ryl$3Z3oh=_xVe<<ww@YX|&;zK1M1bs++np{u`MEdAGC9*a#LkP7xdgR45"
        "f>0LpAwlRghO6EWVdl|66xoQ@o(92XI|x|670Z#;fL*%-N@uU<1}U)mKRej)1?N47@zzxoxlE(RvZ"
    ),
    # The same as rows of outgoing edges.
    "csr": (
        "T>t=p0RR90|NsC0{{SDTQiMc*W$c-_7Ggax%Q%aVQ<6Ete?E<3mEk_s-$ktDO*#RvPQ`4dHF8Yi+_q}Xj(FMYE9y-"
        "May_Rz8H2XN30o+TF6XU+S;cD!^2J-5yGJ0RXCZ+S#S=PUvBFylDQ9RVo!Hb??Hr3|rZA_Gy--|gDXuIu5NB}99-FUsTP-"
        ";>{cIgcDE7;%ZC%M?X*%erxL)#wDgB@QeB5302a4Q6TLOxkkck}zX^0>?=mDiV35)cp*Z|@g2y$9ptq>*EbB*sg8Rw0h<{mE"
        "8%je(wH{?b~HY&Iz%Yt70EdmDv9p;A*$GsGhQ7enAl!O?UxN80tLXkGClI9s`g`K;0RZ8o7VmZTLCWG$;IL><9KQy5h4wUCZ"
        ";bhhj?OY@UTOVgbJ=E;h8-pNmdP9TvI^m|lw8j(;#a-JYNK=a5J{bfFAGZ-"
        "IHuUL?n2Hp5fMU8v9>SFVsFWbw+{g<F%@Vk5y_0?g=C6{oj=Zb@5tIMn=-t%"
    ),
    # The same as rows of incoming edges.
    "csc": (
        "T>t=p0RR90|NsC0{{SDTQiMc*W$c-_7Ggax%Q%aVQ<6Ete?E<3mEk_s-$ktDO*#RvPQ`4dHF8Yi+_q}Xj(FMYE9y-"
        "May_Rz8H2XN30o+TF6XU+S;cD!^2J-"
        "5yGJ0RXCZ+S#S=PUvBFylDQ9RVo!Hb??Hr3|rZA_Gz|^cdqpmD7<bpI&yI2txW4ysD{?RPxgNfJ1lh%MWAI|46JhQk8vvrd("
        "3H&v5e!Nzs&;E^5fT%MSOtJHMK0KsvKP$1-yHNNJP(6=7Z=iJDle}as>4`TyU4kVGemm))ui8pX17=FX#{FG5Go$k7t;-"
        "7kL`R(AlBp|FMB@3#-"
        "hMOw11Y*iwN%`h93A9p{F~739E2yKxm|VI)v14&@t))Hr81x<Yqb(;boOM`YEOl*h^A_a8gqOqll$UILTC36J36vIm)HVO4P"
        "|}$+s3aqm7oovkFVVwPCGBqOc}_AX%v2@7Y<;iw?AQ%r-%H;4r7kGt+t>$JF#C_kDUBr?=?yzsx3bLoHkt"
    ),
    # A graph of one type.
    "plain": (
        "T>t=p0RR90|NsC0{{SDTQiMc*W$c-_7Ggax%Q%aVQ<6Ete?E<3mEk_s-$ktDO*#RvPQ`4dHF8Yi+_q}Xj(FMYE9y-"
        "May_Rz8H2XN(!Xbz?xg2EF`C5ceu9-"
        "c$*|8JzOw!@bT?j~yb}6riBZhH%qE`=WIjsCjH%NK7wTpUjPSt+_aq3Meq)3@yJaLb7oJFp!40<Du4X>dT3OV1Bv?+`PHu$+"
        "SpkQ>j&!3ZVAWtfSZGRiPtRG@QbOBSyWvr@nIJ5N^(eSe32DS4b(zvlG@GP1Ev~$g4;q3XM~{(P<P(@Z6(K>{%k*GLQ&J%QD"
        "Cpt`Y1Vk}8|&S^>i^<+uH*"
    ),
    # Two of these.
    "two": (
        "T>t=p0RR90|NsC0{{SDTQiMc*W$c-_7GghiiNtWh3=X5AK<<gsc)ij>%K3@ELtb@ISsKV-vZs>HQ$ahTcHF85|I8NwX$XNpo"
        "rF#}0@J<Ql_ikEoNVvxVS&L&L<=nS=HYA7^<fZ<`uWeGLd)aBu2BQ$S!~}U!8sO^(Ck4O9Lf&;%CT2YeOnPuv!XzEl&_=FFF"
        "dg^O*Zwl+}uhiGMtFJ+Ut!|Lk6dVi#1b1OmrtcXK>Pf&&8TqkRkz%G9ea2?CI96CWHz{C1{9<_3y(<yLo}h>Z(^lT#~(x_2}"
        "7v31nMH+wVuNqdp%XZXChVTAYW2?RIshW{KNgnI*a5Yro*rUX%a*VWwv"
    ),
    # One of these with a tensor of edges.
    "weighted": (
        "T>t=p0RR90|NsC0{{SDTQiMc*W$c-_7Ggax%Q%aVQ<6Ete?E<3mEk_s-$ktDO*#RvPQ`4dHF8Yi+_q}Xj(FMYE9y-"
        "May_Rz8H2XN(!Xbz?xg2EF`C5ceu9-"
        "c$*|8JzOw!@bT?j~yb}6riBZhH%qE`=WIjsCjH%NK7wTpUjPSt+_aq3Meq)3@yJaLb7oJFp!40<Du4X>dT3OV1Bv?+`PHu$+"
        "SpkQ>j&!3ZVAWtfSZGRiPtRG@QbOBSyWvr@nIJ5N^(eSe32DS4b(zvlG@GP1Ev~$g4;q3XM~{(P<P(@Z6(K>{%k(Qd>cm^8i"
        "K~0K)R=3TkgdB`gRgK)Y4(Tsr>B?y^R6sZ"
    ),
}


def saved_by_dgl(name: str) -> bytes:
    """The bytes of one of the files."""
    return lzma.decompress(base64.b85decode(FILES[name]))
