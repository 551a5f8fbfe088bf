package local

import "github.com/elevenmessenger/connect/integrations"

// What a bot may propose: for its prompts, not for its checks, which the sidecar makes.

type servicesAnswer struct {
	Services []*serviceInfo `json:"services"`
}

type serviceInfo struct {
	ID    string    `json:"id"`
	Name  string    `json:"name"`
	About string    `json:"about"`
	Ops   []*opInfo `json:"ops"`
}

type opInfo struct {
	Name    string              `json:"name"`
	Title   string              `json:"title"`
	About   string              `json:"about,omitzero"`
	Access  integrations.Access `json:"access"`
	Effects []string            `json:"effects,omitempty"`
	OneOf   []string            `json:"one_of,omitempty"` // exactly one of these optional args is given
	Args    []*argInfo          `json:"args"`
}

type argInfo struct {
	Name     string     `json:"name,omitzero"` // absent of what a list holds
	Type     string     `json:"type"`
	About    string     `json:"about,omitzero"`
	Required bool       `json:"required"`
	Values   []string   `json:"values,omitempty"` // of an enum
	Default  string     `json:"default,omitzero"` // in its type's one form, as text
	Filled   bool       `json:"filled,omitzero"`  // by the connection, where it is left out
	Clear    bool       `json:"clear,omitzero"`   // null clears what is there
	Items    *argInfo   `json:"items,omitzero"`   // what a list holds, where it is a scalar
	Fields   []*argInfo `json:"fields,omitempty"` // what a list's objects hold
	Pattern  string     `json:"pattern,omitzero"` // RE2, of the whole value
	MaxItems int        `json:"max_items,omitzero"`
}

func palette(reg *integrations.Registry) *servicesAnswer {
	out := &servicesAnswer{Services: []*serviceInfo{}}
	for _, m := range reg.All() {
		s := &serviceInfo{ID: m.ID, Name: m.Name, About: m.About, Ops: []*opInfo{}}
		for _, o := range m.Ops {
			s.Ops = append(s.Ops, &opInfo{Name: o.Name, Title: o.Title, About: o.About, Access: o.Access, Effects: o.Effects, OneOf: o.OneOf, Args: argInfos(o.Args)})
		}
		out.Services = append(out.Services, s)
	}
	return out
}

func argInfos(args integrations.ArgList) []*argInfo {
	all := []*argInfo{}
	for _, a := range args {
		all = append(all, arg(a))
	}
	return all
}

func arg(a *integrations.Arg) *argInfo {
	i := &argInfo{Name: a.Name, Type: a.Kind(), About: a.About, Required: a.Required() && a.Connection == "", Values: a.Values,
		Filled: a.Connection != "", Clear: a.Clear, Pattern: a.Pattern, MaxItems: a.MaxItems}
	if a.Default != nil {
		i.Default = a.Default.Text
	}
	if a.Of != nil && a.Of.Arg != nil {
		i.Items = arg(a.Of.Arg)
	}
	if a.Of != nil && len(a.Of.Object) > 0 {
		i.Fields = argInfos(a.Of.Object)
	}
	return i
}
